"""Which settings must be those that a run was begun with, and which may be others."""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import RegardError
from regard.families.settings import Settings
from regard.runs.recipes import override
from regard.runs.resuming import (
    FREE,
    STEPS,
    Begun,
    agreed,
    asked,
    begun,
    check_begun,
    check_place,
    flat,
    noted,
    to_go_on_from,
)
from regard.training.checkpoints.reading import Checkpoint, Place, sound
from regard.training.checkpoints.saving import Checkpoints
from regard.training.distributed.processes import ALONE

DATA = "data.train=['/a.txt']"


def said(*changes: str) -> Settings:
    """Settings as a command line gives them."""
    return override(Settings(), [DATA, *changes])


def resolved(settings: Settings) -> Settings:
    """The same with what a machine decides."""
    kind = settings.tokenizer.kind if settings.tokenizer.kind != "auto" else "bpe"
    every = settings.training.validate_every or 50
    changes = {
        "tokenizer": {"kind": kind, "vocabulary": 512},
        "model": {"preset": settings.model.preset or "regard-4", "layers": 4},
        "optimizer": {"peak": settings.optimizer.learning_rate or 3e-3},
        "training": {"validate_every": every, "rows": 16, "device": "cpu", "log_every": 5},
    }
    return settings.changed(changes, "test")


def run_of(*changes: str) -> Begun:
    settings = said(*changes)
    return Begun(Path("runs/a"), resolved(settings), settings)


def older(*changes: str) -> Begun:
    return replace(run_of(*changes), asked=None)


def refused(run: Begun, settings: Settings) -> list[str]:
    """What is told of each setting that differs."""
    with pytest.raises(RegardError) as told:
        agreed(run, settings)
    words = str(told.value)
    assert words.startswith("runs/a was begun with other settings: ")
    assert words.endswith("; give what it was begun with, or choose another --out")
    lines = words.removeprefix("runs/a was begun with other settings: ")
    return [line.partition(";")[0] for line in lines.split("\n  - ")[-lines.count("\n") :]]


# What must agree


@pytest.mark.parametrize("run", [run_of, older])
def test_the_same_settings_agree_and_those_that_were_resolved_are_gone_on_with(run):
    changes = ("training.steps=70", "optimizer.kind=muon", "model.dropout=0.2")
    begun_with = run(*changes)
    assert agreed(begun_with, said(*changes)) == begun_with.settings.changed(
        {"training": {"device": "auto"}}, "test"
    )


@pytest.mark.parametrize(
    ("here", "there", "told"),
    [
        (["training.seed=1"], [], "training.seed is 1 here and 0 there"),
        ([], ["training.seed=1"], "training.seed is 0 here and 1 there"),
        (["training.seed=2"], ["training.seed=1"], "training.seed is 2 here and 1 there"),
        (["optimizer.kind=muon"], [], "optimizer.kind is 'muon' here and 'adamw' there"),
        (["model.preset=gpt2"], [], "model.preset is 'gpt2' here and '' there"),
        (["model.layers=3"], [], "model.layers is 3 here and 'not given' there"),
        ([], ["model.layers=3"], "model.layers is 'not given' here and 3 there"),
        (["model.layers=3"], ["model.layers=2"], "model.layers is 3 here and 2 there"),
        (["tokenizer.kind=char"], [], "tokenizer.kind is 'char' here and 'auto' there"),
        (["schedule.decay_fraction=0.5"], [], "schedule.decay_fraction is 0.5 here and 0.4 there"),
        (["data.pairs=true"], [], "data.pairs is True here and False there"),
        (["data.held_out=0.2"], [], "data.held_out is 0.2 here and 0.1 there"),
        (["training.average=3"], [], "training.average is 3 here and 0 there"),
        (["training.masked=0.2"], [], "training.masked is 0.2 here and 0.15 there"),
        (["training.precision=bf16"], [], "training.precision is 'bf16' here and 'auto' there"),
        (["training.micro_batch_size=4"], [], "training.micro_batch_size is 4 here and 0 there"),
    ],
)
def test_a_setting_that_differs_is_named_with_both_its_values(here, there, told):
    assert refused(run_of(*there), said(*here)) == [told]


def test_all_that_differs_is_told_together_in_order():
    here = said(
        "training.seed=1", "optimizer.learning_rate=0.1", "model.width=64", "training.keep=3"
    )
    assert refused(run_of("schedule.kind=cosine"), here) == [
        "model.width is 64 here and 'not given' there",
        "optimizer.learning_rate is 0.1 here and 0.0 there",
        "schedule.kind is 'constant' here and 'cosine' there",
        "training.seed is 1 here and 0 there",
    ]


def test_steps_may_be_raised_and_never_lowered():
    run = run_of("training.steps=70")
    assert agreed(run, said("training.steps=70")).training.steps == 70
    assert agreed(run, said("training.steps=71")).training.steps == 71
    assert agreed(run, said()).training.steps == 1000  # which is usual
    (told,) = refused(run, said("training.steps=69"))
    assert told == "training.steps is 69 here and 70 there"
    assert refused(run_of("training.steps=1001"), said()) == [
        "training.steps is 1000 here and 1001 there"
    ]
    more = agreed(run, said("training.steps=900"))
    assert more.training.validate_every == run.settings.training.validate_every  # as it was decided


CHANGED = {
    "training.device": "cpu",
    "training.distribution": "fsdp",
    "training.keep": 7,
    "training.log_every": 3,
    "training.on_fault": "back",
    "training.spike": 6.0,
    "training.sample_every": -1,
    "training.tensorboard": True,
    "training.timeout": 5.0,
}


@pytest.mark.parametrize("key", FREE)
@pytest.mark.parametrize("run", [run_of, older])
def test_what_changes_no_weights_may_be_another(key, run):
    value = CHANGED[key]
    found = agreed(run(), said(f"{key}={json.dumps(value)}"))
    assert flat(found.tables())[key] == value
    others = flat(replace(run().settings).tables())
    assert {k for k, v in flat(found.tables()).items() if others[k] != v} <= {
        key,
        "training.device",
    }


@pytest.mark.parametrize("key", FREE)
def test_what_may_be_another_may_be_as_usual_again_when_it_is_named(key):
    run = run_of(f"{key}={json.dumps(CHANGED[key])}")
    usual, there = (flat(some.tables())[key] for some in (Settings(), run.settings))
    found = agreed(run, said(f"{key}={json.dumps(usual)}"), [key])
    assert flat(found.tables())[key] == usual != there
    kept = flat(agreed(run, said()).tables())[key]
    assert kept == (usual if key == "training.device" else there)


def test_a_device_that_is_not_said_is_looked_for_anew():
    run = run_of("training.device=cpu")
    assert agreed(run, said()).training.device == "auto"
    assert agreed(run, said("training.device=cuda")).training.device == "cuda"


def test_data_may_lie_elsewhere_and_is_read_where_it_lies_now():
    moved = said("data.train=['/b/a.txt']", "data.valid=['/b/v.txt']")
    found = agreed(run_of("data.valid=['/v.txt']"), moved)
    assert found.data.train == ("/b/a.txt",)
    assert found.data.valid == ("/b/v.txt",)


# Runs that say less


def test_of_an_older_run_only_what_is_said_is_compared_with_what_was_resolved():
    run = older("training.seed=4", "model.preset=gpt2-tiny")
    assert agreed(run, said("training.seed=4", "tokenizer.kind=bpe")).training.seed == 4
    assert agreed(run, said()).training.seed == 4
    assert agreed(run, said("training.micro_batch_size=16")).training.micro_batch_size == 16
    assert refused(run, said("training.seed=5", "tokenizer.kind=char")) == [
        "tokenizer.kind is 'char' here and 'bpe' there",
        "training.seed is 5 here and 4 there",
    ]


def test_what_a_run_keeps_of_what_was_asked_is_what_was_asked_last():
    settings = said("training.steps=70", "training.keep=3")
    assert flat(noted(None, settings)) == {
        "data.train": ("/a.txt",),
        "training.steps": 70,
        "training.keep": 3,
    }
    assert noted(run_of("training.steps=60"), settings) == asked(settings)
    assert noted(older(), settings) is None  # it must not seem to have been asked for so little


# On disk


changes = st.fixed_dictionaries(
    {},
    optional={
        "training.steps": st.integers(1, 1 << 40),
        "training.seed": st.integers(0, (1 << 63) - 1),
        "training.ema": st.floats(0, 0.9),
        "optimizer.learning_rate": st.floats(0, 100),
        "optimizer.kind": st.sampled_from(["adamw", "muon"]),
        "data.valid": st.lists(st.text(st.characters(codec="utf-8")), max_size=3),
        "data.pairs": st.booleans(),
        "tokenizer.file": st.text(st.characters(codec="utf-8")),
        "model.preset": st.sampled_from(["gpt2", "bert-tiny"]),
        "model.layers": st.integers(1, 9),
        "model.dropout": st.floats(0, 1),
        "model.rotary_scaling": st.just(False) | st.just({"factor": 2.0, "kind": "linear"}),
    },
)


@given(changes)
def test_what_was_asked_comes_back_from_the_file_and_agrees(tmp_path_factory, changes):
    tables: dict[str, dict] = {"data": {"train": ["/a.txt"]}}
    for key, value in changes.items():
        name, _, inner = key.partition(".")
        tables.setdefault(name, {})[inner] = value
    settings = Settings().changed(tables, "test")
    folder = tmp_path_factory.mktemp("run")
    write(folder, settings, asked(settings))
    run = begun(folder)
    assert flat(asked(run.asked)) == flat(asked(settings))
    assert run.given == run.asked
    device = {"training": {"device": settings.training.device}}
    assert agreed(run, settings) == settings.changed(device, "test")
    assert agreed(run, run.given).training.steps == settings.training.steps


def write(folder: Path, settings: Settings, given: object = None, versions: object = None) -> None:
    """A run's settings, and weights to lose."""
    tables = {"versions": versions or {"regard": "0.1"}, **settings.tables()}
    tables |= {} if given is None else {"asked": given}
    (folder / "run.toml").write_text(tomli_w.dumps(tables), encoding="utf-8")
    (folder / "model.safetensors").touch()
    assert tomllib.loads((folder / "run.toml").read_text(encoding="utf-8"))


def test_a_run_is_begun_when_there_is_something_to_go_on_from_or_to_lose(tmp_path):
    assert begun(tmp_path) is None
    write(tmp_path, said("training.seed=3"), versions={"data": "digest"})
    run = begun(tmp_path)
    assert (run.folder, run.settings, run.asked) == (tmp_path, said("training.seed=3"), None)
    assert (run.given, run.data) == (run.settings, "digest")
    (tmp_path / "model.safetensors").unlink()
    assert begun(tmp_path) is None
    (tmp_path / "checkpoints" / "0").mkdir(parents=True)
    assert begun(tmp_path) is not None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"training": {"steps": "many"}}, "steps must be a whole number"),
        ({"training": {"stepz": 3}}, "did you mean 'steps'"),
        ({"trainin": {"steps": 3}}, "did you mean 'training'"),
        ({"training": 5}, "must be a table"),
    ],
)
def test_what_nobody_can_have_asked_for_is_told(tmp_path, given, words):
    write(tmp_path, said(), given)
    with pytest.raises(RegardError, match=words) as told:
        begun(tmp_path)
    assert f"{tmp_path / 'run.toml'} [asked]" in str(told.value)


# Checkpoints


def about(settings: Settings, **changes: object) -> dict:
    found = {"settings": settings.tables(), "data": "d", "tokenizers": ["t"], "processes": 1}
    return json.loads(json.dumps({**found, **changes}))


def stored(folder: Path, about: dict) -> Checkpoint:
    kept = Checkpoints(folder, 1, ALONE, about=about)
    kept.save(Place(4), {"a": torch.ones(2)}, {})
    kept.close()
    return Checkpoint(kept.path(4))


def test_a_checkpoint_of_the_same_settings_fits_and_of_what_may_change(tmp_path):
    settings = resolved(said())
    found = stored(tmp_path, about(settings))
    check_place(found, about(settings))
    changed = override(settings, [f"{key}={json.dumps(v)}" for key, v in CHANGED.items()])
    moved = override(changed, ["training.steps=2000", "data.train=['/b.txt']"])
    check_place(found, about(moved, processes=4))


def test_a_checkpoint_of_something_else_is_refused_with_all_that_differs(tmp_path):
    found = stored(tmp_path, about(resolved(said())))
    other = override(resolved(said()), ["training.micro_batch_size=8", "model.layers=3"])
    with pytest.raises(RegardError) as told:
        check_place(found, about(other, data="e", tokenizers=["t", "u"]))
    for words in (
        f"{tmp_path / 'checkpoints' / '4'} does not fit its run: 4 problems",
        "the data has changed since",
        "the tokenizer is another",
        "model.layers was 4 and is 3 now",
        "training.micro_batch_size was 16 and is 8 now",
    ):
        assert words in str(told.value)


@pytest.mark.parametrize(
    "settings", [None, 5, "x", [], {"training": 5}, {"training": {"steps": []}}]
)
def test_a_checkpoint_that_says_nonsense_about_its_settings_is_refused(tmp_path, settings):
    now = about(resolved(said()))
    found = stored(tmp_path, {**now, "settings": settings})
    with pytest.raises(RegardError, match="does not fit its run"):
        check_place(found, now)
    assert found.steps(7) == 7


def test_a_checkpoint_knows_how_many_steps_its_run_was_to_have(tmp_path):
    assert stored(tmp_path, about(said("training.steps=70"))).steps(7) == 70
    assert stored(tmp_path, {}).steps(7) == 7
    assert STEPS == "training.steps"


def test_without_a_checkpoint_a_run_must_be_the_same_one_all_the_more():
    run = replace(run_of(), data="d")
    check_begun(run, about(run.settings))
    check_begun(replace(run, data=""), about(run.settings))  # an older one does not say
    with pytest.raises(RegardError, match=r"runs/a is another run: the data has changed"):
        check_begun(run, about(run.settings, data="e"))
    with pytest.raises(RegardError, match=r"training\.seed was 0 and is 3 now"):
        check_begun(run, about(override(run.settings, ["training.seed=3"])))


# Where to go on from


def found(folder: Path, *bests: int) -> list[Checkpoint]:
    """Checkpoints of steps 2, 4, …, with the best step that each knows of."""
    kept = Checkpoints(folder, 99, ALONE)
    for number, best in enumerate(bests, start=1):
        kept.save(Place(2 * number, best_step=best), {"a": torch.ones(2)}, {})
    kept.close()
    return sound(folder)[0]


def without(folder: Path, *steps: int) -> list[Checkpoint]:
    """The same where some were damaged."""
    for step in steps:
        (folder / "checkpoints" / str(step) / "model.safetensors").unlink()
    return sound(folder)[0]


def steps(kept: Sequence[Checkpoint]) -> list[int]:
    return [one.place.step for one in kept]


@pytest.mark.parametrize("average", [False, True])
def test_it_goes_on_from_the_last_where_nothing_is_missed(tmp_path, average):
    kept = found(tmp_path, 2, 4, 4, 8)
    assert steps(to_go_on_from(kept, tmp_path, average)) == [2, 4, 6, 8]
    assert steps(to_go_on_from(without(tmp_path, 8), tmp_path, average)) == [2, 4, 6]
    assert to_go_on_from([], tmp_path, average) == []


def test_a_best_one_that_is_damaged_is_made_again_from_one_before_it(tmp_path):
    found(tmp_path, 2, 4, 4, 4)
    kept = without(tmp_path, 4)
    assert steps(kept) == [2, 6, 8]
    assert steps(to_go_on_from(kept, tmp_path, average=False)) == [2]


def test_another_one_that_is_damaged_is_missed_where_all_are_averaged(tmp_path):
    found(tmp_path, 2, 2, 2, 2)
    kept = without(tmp_path, 6)
    assert steps(to_go_on_from(kept, tmp_path, average=False)) == [2, 4, 8]
    assert steps(to_go_on_from(kept, tmp_path, average=True)) == [2, 4]


def test_without_one_before_it_the_last_is_all_there_is(tmp_path):
    found(tmp_path, 2, 2, 2)
    kept = without(tmp_path, 2)
    assert steps(to_go_on_from(kept, tmp_path, average=False)) == [4, 6]


def test_what_was_made_again_is_no_longer_missed(tmp_path):
    found(tmp_path, 2, 4, 4)
    without(tmp_path, 4)
    assert steps(to_go_on_from(sound(tmp_path)[0], tmp_path, average=False)) == [2]
    kept = found(tmp_path, 2, 4, 4)
    assert (tmp_path / "checkpoints" / "4.damaged").exists()
    assert steps(to_go_on_from(kept, tmp_path, average=False)) == [2, 4, 6]
