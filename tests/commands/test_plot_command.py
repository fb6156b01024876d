"""`regard plot`: a picture of the runs that are named, or one sentence."""

from pathlib import Path

import pytest
from command_line import call, mistake


@pytest.mark.parametrize(
    ("name", "beginning"), [("c.png", b"\x89PNG"), ("c.pdf", b"%PDF"), ("new/c.svg", b"<?xml")]
)
def test_the_suffix_decides_the_kind_of_picture(decoder, name, beginning):
    said = call("plot", decoder, "-o", name)
    assert said == (0, f"wrote {name}\n", "")
    assert Path(name).read_bytes().startswith(beginning)


def test_every_run_is_named_in_the_picture_and_options_may_come_first(decoder, words):
    assert call("plot", "--by", "tokens", "--out", "c.svg", decoder, words).code == 0
    picture = Path("c.svg").read_text(encoding="utf-8")
    for run in (decoder, words):  # both are called run, so their folders tell them apart
        assert f"{run.parent.name}/run" in picture
    assert "training tokens" in picture


def test_without_a_name_it_is_curves_png_here(decoder):
    assert "wrote curves.png" in call("plot", decoder).out
    assert [path.name for path in Path().iterdir()] == ["curves.png"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "name at least one run"),
        ("nowhere", "nowhere is no run"),
        ("nowhere . {run}", "2 problems"),
        ("{run} -o c.gif", ".png, .svg, .pdf"),
        ("{run} -o c", ".png, .svg, .pdf"),
    ],
)
def test_a_mistake_is_one_sentence_and_draws_nothing(decoder, arguments, words):
    given = [argument.format(run=decoder) for argument in arguments.split()]
    assert words in mistake(call("plot", *given))
    assert not list(Path().iterdir())
