"""Truncated backpropagation through time: what rows remember from step to step."""

import json
import math
import re
import signal
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from many_processes import together
from test_loop_goes_on import Broken, assert_alike, left, told
from tiny_jobs import (
    VOCABULARY,
    Heard,
    Stopping,
    gradients_of,
    job_of,
    ready_of,
    trained,
    weights_of,
)
from torch import Tensor, nn
from torch.nn import functional as F

from regard.cli import main
from regard.commands import evaluate
from regard.data.batch import Batch
from regard.data.feeds.masking import IGNORE
from regard.data.feeds.stream import TRACK, TRACKS, ContinuedTextFeed
from regard.models.construction import build
from regard.models.recurrent.config import RecurrentConfig
from regard.models.recurrent.model import RecurrentDecoder
from regard.models.recurrent.state import HiddenState
from regard.text.specials import BOS, EOS
from regard.training.carried_state import CarriedState
from regard.training.checkpoints.reading import sound
from regard.training.distributed.processes import ALONE, Processes
from regard.training.job import Job
from regard.training.loop import Loop
from regard.training.validation import at_rest, measure

CELLS = ("elman", "gru", "lstm")


class Text:
    """Tokens in memory: documents in which each token is likely to be near the one before it."""

    def __init__(self, size: int, seed: int = 0) -> None:
        rng, ids = np.random.default_rng(seed), []
        while len(ids) < size:
            walk = np.cumsum(rng.integers(1, 4, rng.integers(3, 40))) % (VOCABULARY - 6)
            ids += [BOS, *(6 + walk).tolist(), EOS]
        self.ids = np.array(ids[:size], np.int64)

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, starts: np.ndarray, width: int, fill: int, ring: bool = False) -> np.ndarray:
        filled = np.append(self.ids, [fill] * (width + int(starts.max())))
        if ring:
            filled = np.resize(self.ids, len(filled))
        return np.stack([filled[start : start + width] for start in starts])


ROWS, CONTEXT, STEPS = 5, 6, 4  # of a step, of a row, of an epoch
FEED = ContinuedTextFeed(Text(ROWS * CONTEXT * STEPS + 30), Text(300, seed=1), CONTEXT, ROWS)
assert (FEED.tracks, FEED.steps_per_epoch) == (ROWS, STEPS)


def model_of(seed: int = 0, **changes: object) -> RecurrentDecoder:
    """Two layers of different sizes."""
    tiny = {"vocabulary": VOCABULARY, "width": 12, "hidden": 16, "layers": 2}
    torch.manual_seed(seed)
    return build(RecurrentConfig(**{**tiny, **changes}))


def carrying(folder: Path, seed: int = 0, changes: dict | None = None, **how: object) -> Job:
    """A job that goes on from what is there."""
    made = {"feed": FEED, "module": model_of(seed, **(changes or {})), **how}
    return replace(job_of(folder, **made), found=sound(folder)[0])


class Asked(nn.Module):
    """An answer that notes what rows begin with; the one of a number (from 1) is wrong."""

    def __init__(self, answer: nn.Module, wrong: int = 0) -> None:
        super().__init__()
        self.answer, self.wrong = answer, wrong
        self.begun: list[list[Tensor]] = []  # of each part

    def forward(self, batch: Batch, state: HiddenState) -> Tensor:
        self.begun.append([tensor.clone() for tensor in state.tensors()])
        return self.answer(batch, state) * (torch.nan if len(self.begun) == self.wrong else 1.0)


def logits_of(module: RecurrentDecoder, x: Tensor, cut: int) -> Tensor:
    """All of x (rows, positions) token by token, the gradient cut before every `cut` tokens."""
    held, step, found = module.decoder.blank(len(x)), module.decoder.steps(len(x)), []
    for place, token in enumerate(module.embed(x).unbind(1)):
        if place % cut == 0:
            held = tuple(tuple(part.detach() for part in layer) for layer in held)
        held = step(token, held)
        found.append(held[-1][0])
    return module.logits(torch.stack(found, dim=1))


def losses_of(logits: Tensor, targets: Tensor) -> Tensor:
    """The summed loss of each stretch of `CONTEXT` positions."""
    each = F.cross_entropy(
        logits.transpose(1, 2), targets, ignore_index=IGNORE, reduction="none"
    )  # (rows, positions)
    return each.unflatten(1, (-1, CONTEXT)).sum((0, 2))


# One long pass whose gradient is cut


@pytest.mark.parametrize("rows", [2, 100])
@pytest.mark.parametrize("cell", CELLS)
def test_steps_are_one_long_pass_whose_gradient_is_cut(tmp_path, cell, rows):
    """With weights that stay: each step's loss and gradient, over two epochs."""
    module = model_of(cell=cell).double()
    loop = Loop(carrying(tmp_path, module=module))
    for epoch in range(2):
        batches = [FEED.step(epoch * STEPS + place) for place in range(STEPS)]
        whole = [
            torch.cat([getattr(b, name) for b in batches], 1) for name in ("tokens", "targets")
        ]
        cut, plain = (
            losses_of(logits_of(module, whole[0], cut), whole[1]) for cut in (CONTEXT, 1000)
        )
        in_one_go = losses_of(module(whole[0]), whole[1])
        for place, batch in enumerate(batches):
            module.zero_grad()
            total = loop._gradients(epoch * STEPS + place, ready_of(batch, rows))
            assert total.item() == pytest.approx(in_one_go[place].item(), rel=1e-6)
            found = gradients_of(module)
            wanted, further = (
                torch.autograd.grad(
                    value[place] / batch.valid, module.parameters(), retain_graph=True
                )
                for value in (cut, plain)
            )
            for name, one in zip(found, wanted, strict=True):
                torch.testing.assert_close(found[name], one, rtol=1e-4, atol=1e-7, msg=name)
            # Backpropagated to the text's begin it would be another, except where that is here.
            name = "decoder.cells.0.recurrent"
            same = torch.allclose(found[name], dict(zip(found, further, strict=True))[name])
            assert same == (place == 0)
    loop.checkpoints.close()


def test_rows_begin_an_epoch_with_nothing_and_go_on_with_what_they_had(tmp_path):
    job = carrying(tmp_path, steps=2 * STEPS, rows=100)
    loop = Loop(job)
    loop.step.answer = Asked(loop.step.answer)
    loop.run()
    begun = loop.step.answer.begun
    assert len(begun) == 2 * STEPS
    for place, tensors in enumerate(begun):
        fresh = place % STEPS == 0
        assert all(bool((tensor == 0).all()) == fresh for tensor in tensors)
    for tensor in begun[-1]:  # each row its own
        assert len(tensor.unique(dim=0)) == ROWS


# Gone on with


@dataclass
class BrokenText(Broken):
    """The same of a recurrent model."""

    def job(self, seed: int = 0) -> Job:
        return carrying(self.folder, seed, self.changes, **(self.settings or {}))


DROPPED = {"dropout": 0.2, "weight_dropout": 0.2, "embedding_dropout": 0.1}
WAYS = {
    "mean": ({}, {"ema": 0.9}),
    "muon": ({"cell": "gru", "variational": True}, {"optimizer": {"kind": "muon"}}),
    "halves": ({"cell": "elman"}, {"ema": 0.9, "precision": "bf16-weights"}),
    "average": ({"layers": 1}, {"average": 2}),
}


@pytest.mark.parametrize("name", WAYS)
def test_wherever_it_is_broken_off_it_ends_as_if_it_had_not_been(tmp_path, name):
    """With accumulation and dropout throughout; in epochs of 4 steps, broken off in both ways."""
    changes, settings = WAYS[name]
    changes = {**DROPPED, **changes}
    how = {"rows": 2, "steps": 11, "checkpoint_every": 3, "validate_every": 5, **settings}
    unbroken = BrokenText(tmp_path / "whole", changes=changes, settings=how)
    whole = unbroken.whole()
    broken = BrokenText(tmp_path / "broken", changes=changes, settings=how)
    jobs = [broken.stopped("step", 1)]
    jobs.append(broken.killed("step", 4, seed=1))  # on from 3, in the midst of an epoch
    jobs.append(broken.stopped("step", 7, seed=2))
    jobs.append(broken.killed("step", 10, seed=3))  # before it is validated; on from 9
    last = broken.job(seed=4)
    trained(last)
    found = left(broken.folder, last.module)
    assert_alike(found, left(unbroken.folder, whole.module))
    assert told(*jobs, last) == told(whole)
    kept = [tensor for name, tensor in found.items() if "carried" in name]
    assert len(kept) == len(last.module.start(1, 1).tensors())
    assert all(tensor.shape[0] == ROWS and bool(tensor.any()) for tensor in kept)


@pytest.mark.parametrize("step", range(1, 9))
def test_it_may_be_broken_off_behind_every_step(tmp_path, step):
    how = {"ema": 0.5, "steps": 8, "validate_every": 2, "checkpoint_every": 3, "rows": 2}
    whole = BrokenText(tmp_path / "whole", changes=DROPPED, settings=how).whole()
    broken = BrokenText(tmp_path / "broken", changes=DROPPED, settings=how)
    first = broken.stopped("step", step)
    last = broken.job(seed=1)
    assert last.found[-1].place.step == step
    trained(last)
    assert_alike(left(broken.folder, last.module), left(tmp_path / "whole", whole.module))
    assert told(first, last) == told(whole)


# In parts


def close(one: dict[str, Tensor], other: dict[str, Tensor], atol: float = 1e-9) -> None:
    assert one.keys() == other.keys()
    for name, weight in one.items():
        torch.testing.assert_close(other[name], weight, rtol=0, atol=atol, msg=name)


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_a_step_in_parts_trains_as_the_whole_does(tmp_path, rows):
    """In float64: see `test_processes`."""
    found = []
    for each in (100, rows):
        job = carrying(tmp_path / str(each), module=model_of().double(), rows=each, steps=10)
        loop, _ = trained(job)
        found.append({**weights_of(job.module), **loop.carried.tensors()})
    close(*found)


# Many processes


HOW = {"rows": 2, "steps": 11, "checkpoint_every": 3, "validate_every": 5}


def begun_by(processes: Processes, folder: Path, stops: int = 0) -> dict:
    """What is left of a run in which somebody asks the last process to stop behind a step."""
    module = model_of(processes.rank, **DROPPED).double()
    job = replace(carrying(folder, module=module, **HOW), processes=processes)
    if stops and processes.rank == processes.count - 1:
        job = replace(job, sink=Stopping(job.stop, "step", stops))
    loop, outcome = trained(job)
    loop.carried.gather()
    rows = {name: tensor.numpy() for name, tensor in loop.carried.tensors().items()}
    weights = {name: weight.numpy() for name, weight in weights_of(module).items()}
    losses, tokens = (
        {event["step"]: event[key] for event in job.sink.of("validation")}
        for key in ("loss", "tokens")
    )
    found = {"tensors": weights | rows, "losses": losses, "tokens": tokens}
    return {**found, "reason": outcome.reason}


def alone(folder: Path, stops: int = 0) -> dict:
    return begun_by(Processes(), folder, stops)


def assert_close(found: dict, wanted: dict) -> None:
    assert found["tensors"].keys() == wanted["tensors"].keys()
    for name, tensor in wanted["tensors"].items():
        np.testing.assert_allclose(found["tensors"][name], tensor, rtol=0, atol=1e-8, err_msg=name)


def test_two_processes_train_as_one_does(tmp_path):
    """Of 5 rows one computes 4 and the other 1, and each measures all that is held out."""
    wanted = alone(tmp_path / "one")
    for found in together(2, begun_by, tmp_path / "two"):
        assert found["reason"] == "finished"
        assert_close(found, wanted)
        assert found["losses"] == pytest.approx(wanted["losses"], rel=1e-9)
        assert found["tokens"] == wanted["tokens"]
    assert_alike_but_for_rounding(tmp_path / "two", tmp_path / "one")


def assert_alike_but_for_rounding(one: Path, other: Path) -> None:
    """The last checkpoints of two runs."""
    first, second = (left(folder, nn.Module()) for folder in (one, other))
    assert first["place"].order == second["place"].order
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        if isinstance(tensor, Tensor) and "faults" not in name:
            torch.testing.assert_close(tensor, second[name], rtol=1e-6, atol=1e-8, msg=name)


@pytest.mark.parametrize("first", [2, 5])
def test_a_run_goes_on_with_another_number_of_processes(tmp_path, first):
    """1 → 2 → 1; behind step 5 there is a validation to do and a checkpoint to write before any
    row is computed."""
    wanted, folder = alone(tmp_path / "whole"), tmp_path / "broken"
    assert alone(folder, first)["reason"] == "interrupted"
    for found in together(2, begun_by, folder, 6):
        assert found["reason"] == "interrupted"
    step = sound(folder)[0][-1].place.step
    assert first < step < HOW["steps"]
    assert step % STEPS  # in the midst of an epoch
    last = alone(folder)
    assert_close(last, wanted)
    assert_alike_but_for_rounding(folder, tmp_path / "whole")


# Numbers going wrong


def test_behind_a_refused_step_rows_begin_anew_whatever_it_left():
    module = model_of()
    carried = CarriedState(module, 3, ALONE)
    state = module.start(3, 1)
    module(torch.full((3, 2), 7), state=state)
    carried.keep(state, 0)
    for good in (True, False):
        carried.settle(torch.tensor(good))
        assert all(bool(tensor.any()) == good for tensor in carried.tensors().values())
    carried.whole[0].fill_(math.nan)
    carried.settle(torch.tensor(False))
    assert not any(tensor.any() for tensor in carried.tensors().values())


@pytest.mark.parametrize("step", [5, 7])
def test_stepping_back_forgets_what_rows_remember_and_goes_on(tmp_path, step):
    """To step 3 or 6, each in the midst of an epoch: rows go on there with nothing."""
    how = {"on_fault": "back", "rows": 100, "steps": 10, "checkpoint_every": 3}
    how |= {"validate_every": 100}
    job, back = carrying(tmp_path / "whole", **how), (step - 1) // 3 * 3
    begun = faulty(job, step).step.answer.begun
    (event,) = job.sink.of("back")
    assert (event["step"], event["to"], event["turn"]) == (step, back, 1)
    assert len(begun) == step + 10 - back
    for number, tensors in enumerate(begun):
        place = number if number < step else number - step + back
        fresh = place % STEPS == 0 or number == step
        assert all(bool((tensor == 0).all()) == fresh for tensor in tensors), number
    # The same by hand: steps of two feeds, between which all is forgotten.
    twin = Loop(carrying(tmp_path / "twin", **how))
    for number in range(10):
        if number == back:
            twin.carried.forget()
        feed = FEED if number < back else FEED.turned(1)
        twin._step(number, ready_of(feed.step(number)))
    twin.checkpoints.close()
    wanted = weights_of(twin.module)
    assert all(torch.equal(weight, wanted[n]) for n, weight in weights_of(job.module).items())
    # Broken off behind it, it goes on the other way, with what rows have remembered since.
    broken = carrying(tmp_path / "broken", **how)
    faulty(replace(broken, sink=Interrupting(broken, back + 2)), step, "interrupted")
    last = carrying(tmp_path / "broken", seed=1, **how)
    assert last.found[-1].place.turn == 1
    faulty(last)
    assert_alike(left(tmp_path / "broken", last.module), left(tmp_path / "whole", job.module))


def faulty(job: Job, step: int = 0, reason: str = "finished") -> Loop:
    """A loop that was run, one step of which had no finite loss."""
    loop = Loop(job)
    loop.step.answer = Asked(loop.step.answer, step)
    assert loop.run().reason == reason
    return loop


class Interrupting(Heard):
    """Somebody asks to stop at a step, once training has stepped back."""

    def __init__(self, job: Job, step: int) -> None:
        super().__init__()
        self.stop, self.step = job.stop, step

    def write(self, event):
        super().write(event)
        if self.of("back") and (event["event"], event["step"]) == ("step", self.step):
            self.stop.heard(signal.SIGTERM)


# Measured


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("size", [2, 3, 8, 50, 301, 1000, 5000])
def test_what_is_held_out_is_measured_as_long_passes_of_all_tracks(cell, size):
    """Each row is a stretch of the text, read in one go, with <s> in place of its first token."""
    module, text = model_of(cell=cell, dropout=0.5).double(), Text(size, seed=2)
    feed = ContinuedTextFeed(FEED.train, text, CONTEXT, ROWS)
    job = job_of(Path(), module=module)
    scores = measure(module, job.objective, feed.held_out(3))
    asked = size - 1
    tracks = max(1, min(TRACKS, asked // (TRACK * CONTEXT)))
    length, total, count = -(-asked // tracks), 0.0, 0
    for begin in range(0, asked, length):
        ids = torch.from_numpy(text.ids[begin : begin + length + 1].copy())
        ids[0], counted = BOS, ids[1:] != BOS
        with at_rest(module):
            each = F.cross_entropy(module(ids[None, :-1])[0], ids[1:], reduction="none")
        total, count = total + each[counted].sum().item(), count + int(counted.sum())
    assert scores.tokens == count == int((text.ids[1:] != BOS).sum())
    assert scores.loss == pytest.approx(total / count, rel=1e-6)


def test_what_fits_one_track_is_measured_as_one_long_pass(monkeypatch):
    module, text = model_of(), Text(500, seed=2)
    monkeypatch.setattr("regard.data.feeds.stream.TRACKS", 1)
    feed = ContinuedTextFeed(FEED.train, text, CONTEXT, ROWS)
    scores = measure(module, job_of(Path(), module=module).objective, feed.held_out(3))
    ids = torch.from_numpy(text.ids)
    targets = ids[1:].masked_fill(ids[1:] == BOS, IGNORE)
    value = F.cross_entropy(module(ids[None, :-1])[0], targets, ignore_index=IGNORE)
    assert scores.tokens == int((targets != IGNORE).sum())
    assert scores.loss == pytest.approx(value.item(), rel=1e-6)
    forgetful = F.cross_entropy(
        torch.cat([module(part[None])[0] for part in ids[:-1].split(CONTEXT)]),
        targets,
        ignore_index=IGNORE,
    )
    assert abs(scores.loss - forgetful.item()) > 1e-4  # memory matters


# Commands


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("regard.training.throughput._fastest_product", lambda device, kind: 1e11)
    monkeypatch.chdir(tmp_path)
    return tmp_path


QUICK = ("training.device=cpu", "training.sample_every=-1", "model.width=16")


def train(*words: str, steps: int = 3, settings: tuple[str, ...] = ()) -> int:
    """The exit code of a small run of an LSTM into the folder `run`."""
    more = ["--steps", str(steps), "--set", *QUICK, *settings]
    try:
        main(["train", *words, "--model", "lstm", "--out", "run", *more])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


def test_evaluate_gives_the_figure_of_the_runs_own_last_validation(folder, capsys):
    rng = np.random.default_rng(0)
    text = " ".join(str(number) for number in np.cumsum(rng.integers(0, 9, 2000)))
    Path("text.txt").write_text(text)
    settings = ("training.tokens_per_step=160", "training.context=16", "tokenizer.kind=char")
    assert train("text.txt", steps=12, settings=settings) == 0
    events = [json.loads(line) for line in Path("run", "log.jsonl").read_text().splitlines()]
    (own,) = [event for event in events if event["event"] == "validation"]
    for rows in (1, 32):
        capsys.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(evaluate, "Evaluation", partial(evaluate.Evaluation, batch_size=rows))
            main(["evaluate", "run", "--json"])
        found = json.loads(capsys.readouterr().out)
        assert found["loss"] == pytest.approx(own["loss"], rel=1e-6)
        assert found["tokens"] == own["tokens"]
        assert found["bits_per_byte"] == pytest.approx(own["bits_per_byte"], rel=1e-6)
        assert "with all that stands before it" in found["rules"]


def test_documents_cannot_be_kept_apart_and_that_is_one_sentence(folder, capsys):
    Path("text.txt").write_text("a text " * 100)
    assert train("text.txt", settings=("data.document_mask=true",)) == 2
    said = capsys.readouterr().err
    assert said == "error: a model like lstm reads across documents; leave out data.document_mask\n"


@pytest.mark.parametrize("kind", ["char", "byte", "bpe", "word"])
@pytest.mark.parametrize("held_out", [0.1, 0.0])
@pytest.mark.parametrize("text", ["", "a", "ab", "a few words\n", "a few more of them " * 2])
def test_a_text_of_a_few_tokens_is_learned_or_refused_in_one_sentence(
    folder, capsys, kind, held_out, text
):
    Path("text.txt").write_text(text)
    code = train("text.txt", settings=(f"tokenizer.kind={kind}", f"data.held_out={held_out}"))
    said = capsys.readouterr().err
    too_little = len(text) < (2 if held_out else 1)
    assert code == (2 if too_little else 0)
    if too_little:
        assert re.fullmatch(r"error: there is (no|too little) text in .*\n", said)
    else:
        assert Path("run", "model.safetensors").exists()
