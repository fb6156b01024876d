"""What is counted over the steps since the last report, and what is left out of it."""

import math
import time

import pytest
import torch
from tiny_jobs import KINDS, Made, batch_of, model_of

from regard.data.batch import Batch
from regard.training.meter import Meter

ONE = torch.ones(())
GOOD, BAD = torch.tensor(True), torch.tensor(False)


def meter_of(kind: str = "causal", steps: int = 6, peak: float = 1e12, products=None) -> Meter:
    return Meter(model_of(kind), Made(kind), steps, peak, products)


def add(meter: Meter, batch: Batch, loss: float = 1.0, good: torch.Tensor = GOOD) -> None:
    """One step of one part with this loss over all its targets."""
    meter.add(torch.tensor(loss), ONE, good, [batch], batch.valid)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_and_the_work_of_padded_rows_are_counted(kind):
    batch, computed = batch_of(kind), []
    meter = meter_of(kind, products=lambda *shape: computed.append(shape) or 1.0)
    parts = batch.parts(2)
    meter.add(ONE, ONE, GOOD, parts, batch.valid)
    meter.add(ONE, 2 * ONE, GOOD, [batch], batch.valid)
    assert (float(meter.loss), float(meter.norm)) == (2.0, 2.0)
    assert sum(meter.computed.values()) == len(parts) + 1
    figures = meter.read(2)
    rows, width, source = max(computed)  # with padding
    assert rows * width == batch.tokens.numel()
    assert rows * source == (0 if batch.source is None else batch.source.numel())
    computed = sum(part.positions for part in parts) + batch.positions
    assert figures["padding"] == pytest.approx(1 - 2 * batch.real_tokens / computed)
    assert figures["loss"] == pytest.approx(1 / batch.valid)
    assert figures["gradient_norm"] == 2.0
    assert figures["epoch"] == pytest.approx(0.2)
    assert (float(meter.loss), float(meter.norm)) == (0.0, 0.0)
    assert sum(meter.computed.values()) == meter.steps == meter.real == 0


def test_the_loss_is_over_all_targets_of_the_steps_whose_update_was_made():
    meter, batches = meter_of(), [batch_of("causal", seed=seed) for seed in range(3)]
    assert len({batch.valid for batch in batches}) == 3
    add(meter, batches[0], 10.0)
    add(meter, batches[1], math.nan, BAD)
    add(meter, batches[2], 20.0)
    figures = meter.read(3)
    assert figures["loss"] == pytest.approx(30 / (batches[0].valid + batches[2].valid))
    assert figures["tokens"] == sum(batch.real_tokens for batch in batches)  # read they were


def test_a_report_in_which_no_update_was_made_has_no_loss_and_the_next_one_has():
    meter, batch = meter_of(), batch_of("causal")
    add(meter, batch, 3.0, BAD)
    assert math.isnan(meter.read(1)["loss"])
    add(meter, batch, 3.0)
    assert meter.read(2)["loss"] == pytest.approx(3.0 / batch.valid)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until a test moves it."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_pauses_are_not_training_but_count_for_the_time_that_is_left(clock):
    meter, batch = meter_of(steps=10), batch_of("causal")
    for _ in range(2):
        clock[0] += 3
        add(meter, batch)
    with meter.paused():
        clock[0] += 4
    figures = meter.read(2)
    assert figures["tokens_per_second"] == pytest.approx(2 * batch.real_tokens / 6)
    assert figures["seconds_left"] == pytest.approx(8 * (3 + 4 / 2))
    clock[0] += 2
    add(meter, batch)
    figures = meter.read(3)
    assert figures["tokens_per_second"] == pytest.approx(batch.real_tokens / 2)
    assert figures["seconds_left"] == pytest.approx(7 * (2 + 4 / 3))  # pauses over all steps


def test_a_pause_that_ends_in_an_error_is_a_pause_too(clock):
    meter = meter_of()

    def broken() -> None:
        with meter.paused():
            clock[0] += 4
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken()
    assert meter.pauses == meter.away == 4


def test_a_stall_is_told_once_and_counts_as_training(clock):
    meter, batch = meter_of(), batch_of("causal")
    clock[0] += 2
    add(meter, batch)
    meter.stalled(0.5)
    meter.stalled(0.25)
    figures = meter.read(1)
    assert figures["stalled"] == 0.75
    assert figures["tokens_per_second"] == pytest.approx(batch.real_tokens / 2)
    add(meter, batch)
    clock[0] += 2
    assert "stalled" not in meter.read(2)


def test_the_share_of_the_peak_is_work_over_time_over_peak(clock):
    batch = batch_of("pairs")
    meter = meter_of(peak=1e6, products=lambda rows, width, source: 1000 * rows + width + source)
    clock[0] += 2
    add(meter, batch)
    rows, width, read = len(batch.tokens), batch.tokens.shape[1], batch.source.shape[1]
    assert meter.read(1)["share_of_peak"] == pytest.approx((1000 * rows + width + read) / 2 / 1e6)


def test_where_nobody_counted_there_is_no_share():
    meter = meter_of()
    add(meter, batch_of("causal"))
    assert "share_of_peak" not in meter.read(1)
