"""Every model that has a name can be built by it."""

import pytest

import regard
from regard.errors import RegardError
from regard.families.registry import ABOUT, OTHERS, named, settings_of
from regard.models.transformer.presets import PRESETS


def test_every_other_model_says_what_it_is():
    assert ABOUT.keys() == OTHERS.keys()


@pytest.mark.parametrize("name", [*OTHERS, "gpt2-tiny", "regard-4"])
def test_every_name_can_be_built_and_its_settings_are_known(name):
    module = regard.build(name, "meta")
    assert type(module.config) is type(named(name))
    assert set(settings_of(name)) == {*vars(named(name))}
    assert module.config.resolved().kind in ("decoder", "encoder-decoder", "captioner", "vectors")


def test_a_wrong_name_is_told_with_the_nearest_of_all():
    with pytest.raises(RegardError, match="did you mean 'cbow'"):
        regard.build("cboww")
    assert not PRESETS.keys() & OTHERS.keys()
