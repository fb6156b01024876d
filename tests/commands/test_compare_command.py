"""`regard compare`: what the command line means, what it writes, and how it goes on."""

import json
import signal

import pytest
import tyro
from command_line import call, mistake

from regard.commands.compare import Compare
from regard.comparison import compare_runs, context_use, growth, measuring, writing
from regard.comparison.contestants import Contestant
from regard.errors import RegardError
from regard.runs.status import state
from regard.storage import event_log
from regard.training.loop import Loop
from regard.training.signals import StoppedError

QUICK = ("training.tokens_per_step=256", "training.context=32", "tokenizer.vocabulary=300")
FIGURES = ("quality", "context", "lengths", "cost", "speed", "samples")


@pytest.fixture(autouse=True)
def _little(monkeypatch):
    measure_little(monkeypatch)


def measure_little(monkeypatch):
    """Less of everything that is measured."""
    monkeypatch.setattr(measuring, "LENGTHS", {False: (4, 8, 16), True: (4, 8, 16)})
    monkeypatch.setattr(measuring, "RESAMPLES", 5)
    monkeypatch.setattr(growth, "ENOUGH", 0.0)
    monkeypatch.setattr(growth, "STEPS", 2)
    monkeypatch.setattr(writing, "LIMIT", 4)
    monkeypatch.setattr(writing, "SHOWN", 8)
    monkeypatch.setattr(context_use, "TARGETS", 16)


def wanted(*arguments):
    """What a command line asks for."""
    return tyro.cli(
        Compare, args=arguments, config=(tyro.conf.FlagCreatePairsOff,)
    ).request.wanted()


def compared(*arguments, settings=QUICK):
    return call("compare", *arguments, "--set", *settings)


TEXT = ("--models", "bigram,elman,conv,transformer", "--parameters", "9k", "--steps", "3")


def text(data, out, *more):
    own = ("conv:model.layers=2", "transformer:model.layers=1")
    return compared(data / "notes.txt", *TEXT, "--out", out, *more, settings=(*QUICK, *own))


@pytest.fixture(scope="module")
def done(tmp_path_factory, cache, data):
    """A comparison on text at its end, and what was printed."""
    folder = tmp_path_factory.mktemp("compared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(cache))
        patch.setattr("regard.training.throughput._fastest_product", lambda device, kind: 1e11)
        measure_little(patch)
        said = text(data, folder, "--seeds", 2)
    assert said.code == 0, said.err
    return folder, said


def test_text_is_compared_from_counts_to_a_transformer(done):
    folder, said = done
    found = json.loads((folder / "report.json").read_text())
    by_name = {one["name"]: one for one in found["results"]}
    assert list(by_name) == ["bigram", "elman", "conv", "transformer"]
    for name, one in by_name.items():
        assert not one["failed"]
        assert [len(one["scores"][key]["values"]) for key in ("bits_per_byte", "loss")] == [2, 2]
        assert one["context"]["x"] == [1, 2, 4, 8, 16]
        assert one["cost"]["lengths"] == [4, 8, 16]
        assert len(one["samples"]) == len(found["given"]) == 3
        assert set(one["decoding"]) == {"1", "16"}
        assert (one["parameters"] == 0) == (name == "bigram")
    losses = by_name["bigram"]["context"]["y"]  # the last token is all that it knows of
    assert max(losses) - min(losses) < 1e-6
    assert by_name["bigram"]["used"] == 1
    assert by_name["elman"]["tokens"] == by_name["conv"]["tokens"] == 3 * 256
    assert abs(by_name["elman"]["parameters"] - 9000) < 2000
    assert f"report: {folder / 'report.html'}" in said.out
    html = (folder / "report.html").read_text()
    assert "http" not in html.replace("http-equiv", "")


def test_all_have_the_same_tokens_and_the_same_held_out_part(done):
    folders = list((done[0] / "runs").iterdir())
    assert len(folders) == 8
    assert {state(folder).word for folder in folders} == {"finished"}
    assert len({(folder / "tokenizer.json").read_bytes() for folder in folders}) == 1
    events = [event for folder in folders for event in event_log.read(folder)]
    assert len({event["tokens"] for event in events if event["event"] == "evaluation"}) == 1


def test_what_is_finished_is_neither_trained_nor_measured_again(data, done, monkeypatch):
    folder, _ = done
    first = (folder / "report.json").read_text()

    def never(*arguments, **more):
        raise AssertionError("again")

    monkeypatch.setattr(compare_runs, "train_run", never)
    for name in FIGURES:
        monkeypatch.setattr(measuring.Measurement, name, never)
    assert text(data, folder, "--seeds", 2).code == 0
    assert (folder / "report.json").read_text() == first


def test_pairs_are_compared_with_bleu_by_length(data, tmp_path):
    files = (
        "--pairs",
        data / "source",
        data / "target",
        "--valid",
        data / "source2",
        data / "target2",
    )
    small = ("transformer:model.layers=1", "conv:model.layers=1", "tokenizer.kind=word")
    size = ("--parameters", "12k", "--steps", 2)
    said = compared(*files, *size, "--out", "out", settings=(*QUICK, *small))
    assert said.code == 0, said.err
    found = json.loads((tmp_path / "out/report.json").read_text())
    assert [one["name"] for one in found["results"]] == [
        "rnn",
        "rnn+attention",
        "conv",
        "transformer",
    ]
    assert found["metric"]["key"] == "bleu"
    for one in found["results"]:
        assert one["scores"]["bleu"]["values"][0] >= 0
        assert one["margin"] is not None
        assert len(one["lengths"]["y"]) == len(found["labels"])
        assert len(one["samples"]) == len(found["gold"]) == 6
    rnn, attending = found["results"][:2]
    assert len(set(rnn["cost"]["state_bytes"])) == 1  # one vector, however long the source
    assert attending["cost"]["state_bytes"][0] < attending["cost"]["state_bytes"][-1]


def test_more_models_and_seeds_may_come_later_but_nothing_else_may_change(data, tmp_path):
    few = ("--models", "bigram,elman", "--parameters", "9k", "--steps", 3, "--out", "out")
    assert compared(data / "notes.txt", *few).code == 0
    before = (tmp_path / "out/runs/elman-0/model.safetensors").stat().st_mtime_ns
    more = ("--models", "bigram,elman,lstm", *few[2:], "--seeds", 2)
    assert compared(data / "notes.txt", *more).code == 0
    assert (tmp_path / "out/runs/elman-0/model.safetensors").stat().st_mtime_ns == before
    assert (tmp_path / "out/runs/lstm-1").is_dir()
    other = (*few[:3], "20k", *few[4:])
    words = mistake(compared(data / "notes.txt", *other))
    assert "elman: compare.budget is 20000, was 9000" in words
    assert "choose another --out" in words


@pytest.mark.parametrize("when", ["training", "measuring"])
def test_interrupted_it_goes_on_where_it_was_and_ends_alike(data, tmp_path, monkeypatch, when):
    few = ("--models", "elman,conv", "--parameters", "9k", "--steps", 4, "--out")
    changes = (*QUICK, "conv:model.layers=2", "training.validate_every=2")
    assert compared(data / "notes.txt", *few, "whole", settings=changes).code == 0
    calls = 0

    def interrupting(work):
        def wrapped(*arguments, **more):
            nonlocal calls
            calls += 1
            if calls == 3 if when == "training" else calls == 1:
                raise StoppedError(signal.SIGINT)
            return work(*arguments, **more)

        return wrapped

    with monkeypatch.context() as patch:
        if when == "training":
            patch.setattr(Loop, "_gradients", interrupting(Loop._gradients))
        else:
            patch.setattr(measuring.Measurement, "context", interrupting(lambda self: {}))
        said = compared(data / "notes.txt", *few, "out", settings=changes)
    assert said.code == 130
    assert "the same command goes on" in said.out
    assert not (tmp_path / "out/report.html").exists()
    assert compared(data / "notes.txt", *few, "out", settings=changes).code == 0
    for name in ("elman-0", "conv-0"):
        weights = [(tmp_path / f / "runs" / name / "model.safetensors") for f in ("whole", "out")]
        assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_model_that_fails_is_told_and_the_others_go_on(data, tmp_path, monkeypatch):
    real = compare_runs.train_run

    def failing(made, folder, console, **more):
        if folder.name == "elman-0":
            raise RegardError("weights are no longer <finite>")
        return real(made, folder, console, **more)

    few = ("--models", "elman,conv", "--parameters", "9k", "--steps", 3, "--out", "out")
    changes = (*QUICK, "conv:model.layers=2")
    with monkeypatch.context() as patch:
        patch.setattr(compare_runs, "train_run", failing)
        said = compared(data / "notes.txt", *few, settings=changes)
    assert said.code == 0
    assert "elman could not be compared: weights are no longer <finite>" in said.out
    elman, conv = json.loads((tmp_path / "out/report.json").read_text())["results"]
    assert elman["failed"]
    assert conv["scores"]["loss"]["values"]
    assert "no longer &lt;finite&gt;" in (tmp_path / "out/report.html").read_text()
    assert compared(data / "notes.txt", *few, settings=changes).code == 0  # and is tried again
    assert not json.loads((tmp_path / "out/report.json").read_text())["results"][0]["failed"]


def test_minutes_become_steps_which_stay_what_they_are(data, tmp_path, monkeypatch):
    monkeypatch.setattr(compare_runs, "seconds_per_step", lambda made: 0.5)
    few = ("--models", "bigram,elman", "--parameters", "9k", "--minutes", 0.05, "--out", "out")
    assert compared(data / "notes.txt", *few).code == 0
    assert state(tmp_path / "out/runs/elman-0").steps == 6
    monkeypatch.setattr(compare_runs, "seconds_per_step", lambda made: 0.1)
    assert compared(data / "notes.txt", *few).code == 0  # on a machine that is faster today
    assert state(tmp_path / "out/runs/elman-0").steps == 6


def test_a_model_without_room_for_longer_rows_may_come_first(data, tmp_path):
    few = ("--models", "gpt2-tiny,elman", "--parameters", 0, "--steps", 2, "--out", "out")
    changes = (*QUICK, "training.context=16", "elman:model.width=16")
    said = compared(data / "notes.txt", *few, settings=changes)
    assert said.code == 0, said.err
    found = json.loads((tmp_path / "out/report.json").read_text())
    assert [one["failed"] for one in found["results"]] == ["", ""]
    assert found["labels"] == ["1–16", "17–32"]
    assert [len(one["lengths"]["y"]) for one in found["results"]] == [1, 2]
    assert [one["trained_on"] for one in found["results"]] == [16, 0]


def test_json_is_all_that_is_printed(data):
    few = ("--models", "bigram", "--out", "out", "--json")
    said = compared(data / "notes.txt", *few)
    assert json.loads(said.out)["results"][0]["name"] == "bigram"


def test_a_setting_may_be_for_one_model(data):
    notes = str(data / "notes.txt")
    found = wanted(
        notes, "--models", "lstm,conv", "--set", "lstm:model.layers=1", "training.seed=5"
    )
    assert found.models["lstm"].model.changes == {"layers": 1}
    assert found.models["conv"].model.changes == {}
    assert {one.training.seed for one in found.models.values()} == {5}
    assert {one.tokenizer.kind for one in found.models.values()} == {"bpe"}
    lstm = Contestant("lstm", found.models["lstm"])
    assert [lstm.seeded(number).training.seed for number in range(2)] == [5, 6]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give text to train on"),
        (("notes.txt", "--pairs", "a", "b"), "--pairs or text, not both"),
        (("notes.txt", "--models", "lstn"), "did you mean 'lstm'"),
        (("notes.txt", "--seeds", "0"), "--seeds must be at least 1"),
        (("notes.txt", "--steps", "3", "--minutes", "1"), "give one of --steps and --minutes"),
        (("notes.txt", "--minutes", "-1"), "--minutes must be more than 0"),
        (("notes.txt", "--steps", "-3"), "compare: --steps must be at least 1, not -3"),
        (("notes.txt", "--epochs", "0"), "compare: --epochs must be more than 0, not 0"),
        (("notes.txt", "--parameters", "0.2"), "--parameters 0.2 is less than one"),
        (("notes.txt", "--parameters", "many"), "write a number such as 300k"),
        (("notes.txt", "--set", "lstn:model.layers=1"), "'lstn' is not compared; did you mean"),
        (("notes.txt", "--set", "model.dropout=0"), "ngram: --set: [model] has no key 'dropout'"),
    ],
)
def test_a_mistake_is_told_before_anything_is_read(arguments, said):
    assert said in mistake(call("compare", *arguments))


def test_models_that_could_not_be_compared_are_not_offered():
    words = mistake(call("compare", "notes.txt", "--models", "zzzz"))
    assert " gpt2," in words
    for name in ("bert-base", "rnn", "word2vec", "captioner", "bag-linear"):
        assert f" {name}," not in words


def test_other_data_are_refused_in_one_sentence_and_nothing_is_lost(data, tmp_path):
    few = ("--models", "bigram,trigram", "--out", "out")
    notes = tmp_path / "mine.txt"
    notes.write_bytes((data / "notes.txt").read_bytes())
    assert compared(notes, *few).code == 0
    before = (tmp_path / "out/report.json").read_bytes()
    notes.write_bytes(notes.read_bytes() + b"and one more line\n")
    words = mistake(compared(notes, *few))
    assert words == (
        "error: out was begun with other data; give what it was begun with, or choose another "
        "--out\n"
    )
    assert (tmp_path / "out/report.json").read_bytes() == before


@pytest.mark.parametrize("name", ["report.html", "report.json"])
def test_a_report_of_somebody_else_is_not_written_over(data, tmp_path, name):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / name).write_text("mine")
    words = mistake(compared(data / "notes.txt", "--models", "bigram", "--out", "out"))
    assert f"{name} is there, but compare.json is not" in words
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [(name, "mine")]


def test_a_file_is_no_folder_to_compare_in(data, tmp_path):
    (tmp_path / "out").write_text("mine")
    words = mistake(compared(data / "notes.txt", "--models", "bigram", "--out", "out"))
    assert "out is no folder; choose another --out" in words


@pytest.mark.parametrize(("text", "number"), [("2M", 2_000_000), ("300k", 300_000), ("0", 0)])
def test_a_budget_may_be_written_short(data, text, number):
    assert wanted(str(data / "notes.txt"), "--parameters", text).budget == number


def test_a_built_in_task_is_compared_as_pairs():
    found = wanted("reverse")
    assert found.pairs
    assert list(found.models) == ["rnn", "rnn+attention", "conv", "transformer"]


def test_standard_input_is_read_once_for_all(data):
    raw = (data / "notes.txt").read_bytes()
    few = ("--models", "bigram,trigram", "--out", "out", "--json")
    said = call("compare", "-", *few, stdin=raw)
    assert said.code == 0, said.err
    assert [one["failed"] for one in json.loads(said.out)["results"]] == ["", ""]
