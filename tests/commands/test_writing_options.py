"""Options of `generate` and `translate` reach the search: the same as the API with each setting."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import call

from regard.decoding.settings import Beam
from regard.loading import load


def told(command: str, *arguments: object, stdin: bytes = b"") -> list[dict[str, Any]]:
    """What a command prints as JSON, line by line."""
    said = call(command, *arguments, "--json", "--device", "cpu", stdin=stdin)
    assert said.code == 0, said.err
    return [json.loads(line) for line in said.out.splitlines()]


# --- generate --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.3),
        ("top_k", 2),
        ("top_p", 0.3),
        ("min_p", 0.2),
        ("repetition_penalty", 3.0),
        ("seed", 9),
        ("max_tokens", 5),
        ("stop", " "),
    ],
)
def test_a_setting_of_drawing_reaches_what_is_drawn(decoder, name, value):
    usual = {"max_tokens": 16, "temperature": 0.8, "seed": 3}
    option = f"--{name.replace('_', '-')}"
    usual_options = ("--n", 3, "--seed", usual["seed"], "--max-tokens", usual["max_tokens"])
    found = told("generate", decoder, "the", *usual_options, option, value)
    model = load(decoder, fast=True)
    wanted = model.generate("the", n=3, **(usual | {name: value}))
    assert [(one["text"], one["ids"]) for one in found] == [(one.text, one.ids) for one in wanted]
    without = model.generate("the", n=3, **usual)
    assert [one.text for one in wanted] != [one.text for one in without]


@pytest.fixture(scope="module")
def counted(tmp_path_factory, cache, data) -> Path:
    """Pairs of words, within lines, so that a text may end anywhere."""
    folder = tmp_path_factory.mktemp("counted") / "bigram"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(cache))
        how = ("--model", "bigram", "--tokenizer", "word", "--set", "data.lines=yes")
        said = call("train", data / "notes.txt", *how, "--out", folder)
    assert said.code == 0, said.err
    return folder


def test_a_length_penalty_reaches_a_beam_search(counted):
    model, texts = load(counted), []
    for penalty in (1.0, 2.0):
        options = ("--beam", 6, "--n", 3, "--max-tokens", 9, "--length-penalty", penalty)
        found = told("generate", counted, "the", *options)
        wanted = model.generate("the", max_tokens=9, beam=Beam(6, penalty, n_best=3))
        assert [one["text"] for one in found] == [one.text for one in wanted]
        assert [one["score"] for one in found] == pytest.approx([one.score for one in wanted])
        texts.append([one.text for one in wanted])
    assert texts[0] != texts[1]


# --- translate -------------------------------------------------------------------------------


@pytest.fixture
def lines(data: Path) -> list[str]:
    return (data / "source2").read_text(encoding="utf-8").split("\n")[:4]


def assert_translated(folder: Path, lines: list[str], options: tuple, **settings: Any) -> list:
    """By the command as by the API: texts and scores, line by line."""
    converted = {"int8": True} if settings.pop("int8", False) else {}
    model = load(folder, fast=True, **converted)
    text = "\n".join(lines).encode()
    found = [one["translations"] for one in told("translate", folder, *options, stdin=text)]
    wanted = list(model.translations(lines, **settings))
    texts = [[one.text for one in best] for best in wanted]
    assert [[one["text"] for one in best] for best in found] == texts
    for ours, theirs in zip(found, wanted, strict=True):
        scores = [one.score for one in theirs]
        assert [one["score"] for one in ours] == pytest.approx(scores, abs=1e-6)
    return [[(one.text, one.score) for one in best] for best in wanted]


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (("--beam", 1), {"beam": 1}),
        (("--n-best", 3), {"beam": Beam(5, n_best=3)}),
        (("--length-penalty", 3), {"beam": Beam(5, 3.0)}),
        (("--coverage-penalty", 0.5), {"beam": Beam(5, coverage_penalty=0.5)}),
        (("--max-tokens", 3), {"max_tokens": 3}),
        (("--prefix", "the"), {"prefix": "the"}),
        (("--int8",), {"int8": True}),
    ],
)
def test_a_setting_of_searching_reaches_the_search(translator, lines, options, settings):
    plain = assert_translated(translator, lines, ())
    assert assert_translated(translator, lines, options, **settings) != plain


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (("--max-tokens", 3), {"max_tokens": 3}),
        (("--temperature", 0.3), {"temperature": 0.3}),
        (("--seed", 5), {"seed": 5}),
        (("--mbr", 3), {"mbr": 3}),
    ],
)
def test_a_setting_of_drawing_reaches_the_least_risky(translator, lines, options, settings):
    plain = assert_translated(translator, lines, ("--mbr", 6), mbr=6)
    given = ("--mbr", 6, *options)
    assert assert_translated(translator, lines, given, **({"mbr": 6} | settings)) != plain
