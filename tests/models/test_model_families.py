"""Every model that has a name can be built by it."""

import pytest

import regard
from regard.errors import RegardError
from regard.models.registry import FAMILIES, all_presets, find, named, names, presets, settings_of


def test_every_model_says_what_it_is_and_no_two_have_one_name():
    assert all(preset.about for preset in all_presets().values())
    assert sum(len(presets(family).named) for family in FAMILIES) == len(all_presets())


@pytest.mark.parametrize("name", [*names(), "regard-3-encoder"])
def test_every_name_can_be_built_and_its_settings_are_known(name):
    config = named(name)
    assert config.family in FAMILIES
    assert type(regard.build(name, "meta").config) is type(config)
    assert set(settings_of(name)) == {*vars(config)}


def test_a_wrong_name_is_told_with_the_nearest_of_all():
    assert find("cboww") is None
    with pytest.raises(RegardError, match="did you mean 'cbow'"):
        regard.build("cboww")
