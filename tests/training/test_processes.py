import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from many_processes import Ended, Found, free_port, together
from tiny_jobs import batch_of, model_of
from torch import nn

from regard.decoding.decode_batch import continued
from regard.decoding.settings import TARGET, Beam, Sampling
from regard.decoding.text_model import TextModel
from regard.decoding.translation import translate_all
from regard.errors import RegardError
from regard.training.distributed.joining import joined
from regard.training.distributed.processes import (
    ALONE,
    Processes,
    Vote,
    last_part,
    replicated,
    sharded,
)
from regard.training.distributed.sharding import local, whole
from regard.training.loop import recompute
from regard.training.objectives import loss, objective_for
from regard.training.validation import at_rest

STEPS = 8


class Answer(nn.Module):
    """A batch gives its summed loss."""

    def __init__(self, module):
        super().__init__()
        form = "pairs" if module.config.kind == "encoder-decoder" else "text"
        self.module, self.objective = module, objective_for(module.config, form)

    def forward(self, batch):
        return loss(self.objective.logits(self.module, batch), batch.targets)


def spread(module, processes, how, precision="float32"):
    if how == "fsdp":
        sharded(module, processes, precision)
    answer = Answer(module)
    return replicated(answer, processes, module.config.pooler) if how == "ddp" else answer


def step(answer, processes, batch, rows, number):
    """The gradients of one step, and its mean loss."""
    mine = list(processes.dealt(batch.parts(rows)))
    total = 0.0
    for place, (part, item, counts) in enumerate(mine):
        torch.manual_seed(1000 * number + part)
        with last_part(answer, place == len(mine) - 1):
            value = answer(item)
            (value * (processes.count / batch.valid if counts else 0.0)).backward()
        total += value.item() * counts
    return processes.sums([total])[0] / batch.valid


def trained(processes, how, kind, rows, **changes):
    """Losses and whole weights; processes begin with different weights, of which the first's count.

    In float64: Adam makes whole steps of what rounding leaves of a gradient that is zero, as that
    of the keys' bias is, so that float32 would show nothing beyond 1e-3.
    """
    module = model_of(kind, seed=processes.rank, **changes).double()
    answer = spread(module, processes, how)
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3, fused=True)
    losses = []
    for number in range(STEPS):
        losses.append(step(answer, processes, batch_of(kind, seed=number), rows, number))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return losses, {name: whole(w).detach().numpy() for name, w in module.named_parameters()}


SMALL = {"layers": 1, "encoder_layers": 1}
DROPPED = {"dropout": 0.2, "attention_dropout": 0.2}
# Of 6 rows, parts of 1, 2 and 6 rows are more than the processes, fewer, and one only.
CASES = {
    2: [
        ("causal", 2, DROPPED),
        ("causal", 6, {"tied": False}),
        ("masked", 2, {}),
        ("pairs", 1, DROPPED | SMALL),
    ],
    4: [("causal", 1, {}), ("masked", 2, DROPPED), ("pairs", 6, SMALL)],
}


def all_trained(processes, how, cases):
    return [trained(processes, how, kind, rows, **changes) for kind, rows, changes in cases]


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
@pytest.mark.parametrize("count", CASES)
def test_many_processes_train_as_one_does(count, how):
    wanted = all_trained(ALONE, "alone", CASES[count])
    for found in together(count, all_trained, how, CASES[count]):
        for (losses, weights), (same, others) in zip(wanted, found, strict=True):
            np.testing.assert_allclose(same, losses, rtol=1e-7)
            assert others.keys() == weights.keys()
            for name, weight in weights.items():
                np.testing.assert_allclose(others[name], weight, rtol=0, atol=1e-9, err_msg=name)
    assert losses[-1] < losses[0]


# Shares


def outputs(processes, how, kind, precision="float32", **changes):
    """What a model says after two steps that came behind and before other weights at rest."""
    module = model_of(kind, **changes)
    answer = spread(module, processes, how, precision)
    if how != "fsdp" and precision == "bf16-weights":
        module.to(torch.bfloat16)
    batch = batch_of(kind)
    said = [_logits(answer, batch)]  # before there ever was a gradient
    step(answer, processes, batch, 3, 0)
    kept = {name: local(w).detach().clone() for name, w in module.named_parameters()}
    _move(module, {name: 1.5 * w for name, w in kept.items()})
    said.append(_logits(answer, batch))
    _move(module, kept)
    said.append(_logits(answer, batch))
    gradients = [whole(w.grad).float() for w in module.parameters() if w.grad is not None]
    return [one.numpy() for one in (*said, *gradients)]


def _logits(answer, batch):
    with at_rest(answer):
        return answer.objective.logits(answer.module, batch).float()


@torch.no_grad()
def _move(module, values):
    for name, weight in module.named_parameters():
        local(weight).copy_(values[name])


def all_outputs(processes, how):
    return [outputs(processes, how, kind) for kind in ("causal", "masked", "pairs")]


def test_a_model_in_shares_is_measured_before_training_and_with_other_weights():
    wanted = all_outputs(ALONE, "alone")
    for found in together(2, all_outputs, "fsdp"):
        for one, other in zip(wanted, found, strict=True):
            assert np.abs(one[1] - one[0]).max() > 1e-3
            for a, b in zip(one, other, strict=True):
                np.testing.assert_allclose(b, a, atol=2e-6)


def halves(processes, how):
    return [outputs(processes, how, kind, "bf16-weights") for kind in ("causal", "pairs")]


def test_shares_in_float32_compute_in_bfloat16_where_weights_are_to_be():
    wanted = halves(ALONE, "alone")
    for found in together(2, halves, "fsdp"):
        for one, other in zip(wanted, found, strict=True):
            # What was computed in bfloat16 is the same to the last bit.
            np.testing.assert_array_equal(other[0], one[0])
            for a, b in zip(one[3:], other[3:], strict=True):  # gradients
                assert np.abs(a - b).max() <= 0.03 * np.abs(a).max() + 1e-6
            assert any(_finer(b) for b in other[3:])


def _finer(gradient):
    """Whether numbers are such as bfloat16 has not: they were summed in float32."""
    exact = torch.from_numpy(gradient)
    return not exact.equal(exact.bfloat16().float())


def written(processes, how, precision="float32"):
    decoder, both = model_of("causal", seed=3), model_of("pairs", seed=4, query_key_norm=True)
    for module in (decoder, both):
        spread(module, processes, how, precision)
        if how != "fsdp" and precision == "bf16-weights":
            module.to(torch.bfloat16)
    batch = batch_of("pairs")
    with at_rest(decoder):
        text = list(continued(decoder, [6, 7], Sampling(limit=12, temperature=0)))
    with at_rest(both):
        memory, state = both.encode(batch.source, batch.source_lengths), both.start(6, 2)
        steps = [both(batch.tokens[:, i : i + 1], memory, state).argmax(-1) for i in range(2)]
    sources = [
        row[:length].tolist()
        for row, length in zip(batch.source, batch.source_lengths.tolist(), strict=True)
    ]
    with at_rest(both):
        found = translate_all(TextModel(both, TARGET), sources, Beam(beams=2))
    return text, torch.cat(steps).tolist(), [best[0].ids for best in found]


def both_written(processes, how):
    return written(processes, how), written(processes, how, "bf16-weights")


def test_a_model_in_shares_decodes_when_all_processes_take_part():
    wanted = both_written(ALONE, "alone")
    assert together(2, both_written, "fsdp") == [wanted, wanted]
    assert len(wanted[0][0]) > 3


def forgetful(processes, how, again):
    found = []
    for kind in ("causal", "pairs"):
        module = model_of(kind, **DROPPED)
        if again:
            recompute(module)
        step(spread(module, processes, how), processes, batch_of(kind), 3, 0)
        found.append([whole(w.grad).numpy() for w in module.parameters() if w.grad is not None])
    return found


def test_blocks_in_shares_may_compute_again_what_they_forgot():
    wanted = forgetful(ALONE, "alone", False)
    for found in together(2, forgetful, "fsdp", True):
        for one, other in zip(wanted, found, strict=True):
            for a, b in zip(one, other, strict=True):
                np.testing.assert_allclose(b, a, atol=1e-6)


def unsynced(processes, how):
    """How many bytes the gradients of the first of two parts were exchanged in."""
    module = model_of("causal")
    answer = spread(module, processes, how)
    parts = batch_of("causal").parts(3)
    with last_part(answer, False):
        answer(parts[processes.rank]).backward()
    mine = module.embed.tokens.weight.grad
    alike = None
    if mine is not None:
        total = processes.summed(mine)
        alike = bool(torch.allclose(total, processes.count * mine))
    return alike


def test_only_the_last_part_exchanges_gradients():
    assert together(2, unsynced, "ddp") == [False, False]
    assert together(2, unsynced, "fsdp") == [None, None]  # not yet in the share's own gradient


# What processes tell each other


def told(processes):
    rank = processes.rank
    vote = Vote(processes)
    votes = [vote.result()]
    for flag in (rank == 2, False, True):
        vote.cast(flag)
        votes.append(vote.result())
    vote.cast(False)  # the last one is never looked at
    try:
        processes.agreement("a" if rank % 2 else "b", "data")
        disagreed = ""
    except RegardError as error:
        disagreed = str(error)
    processes.agreement("all the same")
    text = "käse \ud800" + 70_000 * "x"  # a path may hold half a surrogate
    return {
        "first": processes.first,
        "sums": processes.sums([rank, 0.1]),
        "summed": float(processes.summed(torch.tensor(float(rank)))),
        "any": [processes.any(rank == 1), processes.any(False)],
        "said": processes.said(text if rank == 0 else "nothing") == text,
        "votes": votes,
        "disagreed": disagreed,
        "speaks": [processes.one_speaks(), processes.one_speaks()],
        "lost": processes.lost(RuntimeError("expected 3 numbers")),
        "device": processes.device.type,
    }


def test_processes_tell_each_other_numbers_and_words():
    found = together(4, told)
    speaks = [one.pop("speaks") for one in found]
    assert sorted(speaks) == [[False, False]] * 3 + [[True, True]]
    assert [one.pop("first") for one in found] == [True, False, False, False]
    for one in found:
        assert one == found[0]
    sentence = found[0].pop("disagreed")
    assert sentence.startswith("processes 1, 3 have other data than process 0")
    assert found[0] == {
        "sums": [6.0, pytest.approx(0.4)],
        "summed": 6.0,
        "any": [True, False],
        "said": True,
        "votes": [False, True, False, True],
        "lost": False,
        "device": "cpu",
    }


def test_a_process_alone_tells_itself():
    vote = Vote(ALONE)
    vote.cast(True)
    assert [vote.result(), vote.result()] == [True, False]
    assert ALONE.first
    assert ALONE.sums([1, 2.5]) == [1.0, 2.5]
    assert ALONE.said("word") == "word"
    assert [ALONE.any(True), ALONE.any(False)] == [True, False]
    assert ALONE.one_speaks()
    assert not ALONE.lost(RuntimeError("Connection closed by peer"))
    ALONE.agreement("whatever")
    ALONE.barrier()


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("items", range(8))
def test_each_item_counts_once_and_all_compute_equally_many(items, count):
    names = "abcdefgh"[:items]
    shares = [list(Processes(rank, count).dealt(iter(names))) for rank in range(count)]
    assert len({len(share) for share in shares}) == 1
    counted = [(one.number, one.item) for share in shares for one in share if one.counts]
    assert sorted(counted) == list(enumerate(names))
    others = {(one.number, one.item) for share in shares for one in share if not one.counts}
    assert others <= {(0, "a")}


# Joining and leaving

PLACE = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
}


@pytest.mark.parametrize("changes", [{"RANK": None}, {"WORLD_SIZE": "1"}])
def test_without_torchrun_a_process_is_alone_and_touches_nothing(monkeypatch, changes):
    for name, value in (PLACE | changes).items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    with joined("cpu") as processes:
        assert processes == ALONE
        assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"RANK": "two"}, "RANK is 'two' in the environment"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE is '' in the environment"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK is '-1' in the environment"),
        ({"RANK": "2"}, "RANK is 2 but WORLD_SIZE 2"),
        ({"MASTER_PORT": "99999"}, "cannot meet the others at 127.0.0.1:99999"),
        ({"MASTER_ADDR": ""}, "cannot meet the others at :1"),
        ({"RANK": "1"}, "process 1 of 2 cannot meet the others at 127.0.0.1:1: "),
    ],
)
def test_a_wrong_environment_is_one_sentence(monkeypatch, changes, sentence):
    for name, value in (PLACE | changes).items():
        monkeypatch.setenv(name, value)
    short = joined("cpu", timedelta(seconds=1))
    with pytest.raises(RegardError, match=re.escape(sentence)) as caught, short:
        pass
    assert "\n" not in str(caught.value)


def test_a_process_without_a_gpu_is_told(monkeypatch):
    for name, value in (PLACE | {"LOCAL_RANK": "64"}).items():
        monkeypatch.setenv(name, value)
    sentence = "process 0 is number 64 on this machine, which has"
    with pytest.raises(RegardError, match=sentence), joined("cuda"):
        pass


def killed(processes, where):
    """What the others meet when the last of them is killed: is it lost, and who tells."""
    linear = nn.Linear(8, 8)
    copies = replicated(linear, processes, False)
    vote = Vote(processes)
    if where == "backward":
        value = copies(torch.ones(2, 8)).sum()
    processes.barrier()
    if processes.rank == processes.count - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        if where == "barrier":
            processes.barrier()
        elif where == "vote":
            vote.cast(False)
            time.sleep(0.1)
            vote.result()
        else:
            value.backward()
    except RuntimeError as error:
        raise Found(processes.lost(error), processes.one_speaks()) from None


@pytest.mark.parametrize("where", ["barrier", "vote", "backward"])
def test_a_killed_process_is_missed_and_one_tells(where):
    *others, last = together(3, killed, where)
    assert isinstance(last, Ended)
    assert sorted(others) == [(True, False), (True, True)]


GONE = "another process of this job has ended"
SILENT = "another process of this job did not answer for 30 minutes"


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("[…/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:9", GONE),
        ("[…/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv", SILENT),
        ("Application timeout caused pair closure", SILENT),
    ],
)
def test_what_gloo_says_of_a_lost_process_becomes_a_sentence(message, sentence):
    first, error = Processes(0, 2), RuntimeError(message)
    assert first.lost(error)
    assert str(first.loss(error)).startswith(sentence)


def impatient(processes):
    """What the first hears when the second answers later than it waits."""
    group = torch.distributed.new_group(backend="gloo", timeout=timedelta(seconds=0.3))
    processes = replace(processes, control=group, patience=timedelta(seconds=0.3))
    processes.barrier()
    if processes.rank == 1:
        time.sleep(1)
        raise Found(None)
    try:
        processes.barrier()
    except RuntimeError as error:
        raise Found(processes.lost(error), str(processes.loss(error))) from None


def test_who_does_not_answer_is_waited_for_as_long_as_was_said():
    (lost, sentence), _ = together(2, impatient)
    assert lost
    assert "did not answer for 0.005 minutes" in sentence
    assert "raise training.timeout" in sentence


def failing(processes):
    if processes.rank == 1:
        time.sleep(0.2)  # the other has come to its end
        raise Found


def test_nobody_ends_well_while_another_fails():
    with pytest.raises(AssertionError, match=r"(?s)process 0 of 2.*by peer"):
        together(2, failing)


SCRIPT = """
import signal, sys, time
import torch
from regard.errors import RegardError
from regard.training.distributed.joining import joined
from regard.training.distributed.processes import Vote

signal.signal(signal.SIGTERM, lambda *_: None)  # as training has it: noted, and looked at later
with joined("cpu") as processes:
    try:
        vote = Vote(processes)
        vote.cast(False)
        if processes.rank == 1:
            time.sleep(0.2)
            raise RegardError("process 1 has no room")
        vote.result()
        while True:
            vote.cast(False)  # while one has left, and will never vote
            processes.barrier()
            vote.result()
    except (RegardError, RuntimeError) as error:
        assert isinstance(error, RegardError) or processes.lost(error)
        if processes.one_speaks():
            print("TOLD:", error, flush=True)
        sys.exit(2)
"""


def test_under_torchrun_one_failure_ends_all_and_is_told_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3"]
    run += ["--master-port", str(free_port()), str(script)]
    environment = {k: v for k, v in os.environ.items() if k not in PLACE} | {"OMP_NUM_THREADS": "1"}
    root = Path(__file__).parents[2]
    done = subprocess.run(
        run, capture_output=True, text=True, timeout=60, env=environment, cwd=root, check=False
    )
    assert done.returncode == 1
    assert re.findall("TOLD: .*", done.stdout) == ["TOLD: process 1 has no room"]
    assert "SIGKILL" not in done.stderr  # nobody had to be forced to end
