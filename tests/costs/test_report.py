"""Reports: times from rates, what fits, what to change."""

import math
from dataclasses import replace

import pytest
import torch
from small_models import small

from regard.costs import jobs
from regard.costs import report as report_module
from regard.costs.device.ceilings import Grid, device_named, of_sheet
from regard.costs.device.roofline import roofline
from regard.costs.jobs import Shape
from regard.costs.predict import predicted, taken
from regard.costs.report import Asked, advice, report
from regard.errors import RegardError
from regard.models.construction import build
from regard.training import r_drop
from regard.training.objectives import Criterion

RATE, MOVED = 1e9, 1e8
PLAIN = replace(
    device_named("cpu-2"),
    products={"float32": Grid.constant(RATE, 3)},
    batched={"float32": Grid.constant(RATE, 3)},
    attention={"float32": Grid.constant(RATE, 3)},
    attention_back={"float32": Grid.constant(RATE, 3)},
    traffic={"aten::copy_": Grid.constant(MOVED, 1)},
    launch={},
    recurrence={},
    memory=10**9,
)


def test_with_constant_rates_each_operation_takes_the_longer_of_the_two():
    counted = jobs.train_step(small("gpt2"), Shape(2, 8))
    expected = sum(max(r.executed / RATE, (r.read + r.written) / MOVED) for r in counted.records)
    assert predicted(counted, PLAIN, "train").seconds == pytest.approx(expected)


HOST = ("calls", "modules")


def entered(config):
    """How many modules a step of the real model runs."""
    module, count = build(config).eval(), [0]
    state = module.start(2, 9)
    with torch.no_grad():
        module(torch.zeros(2, 8, dtype=torch.long), state=state)
        for part in module.modules():
            part.register_forward_pre_hook(lambda *_: count.__setitem__(0, count[0] + 1))
        module(torch.zeros(2, 1, dtype=torch.long), state=state, last=True)
    return count[0]


def test_launches_are_added_on_a_cpu_and_hidden_by_a_gpu():
    counted = jobs.step(small("gpt2"), Shape(2, 8))
    busy = predicted(counted, PLAIN, "write").seconds
    slow = replace(PLAIN, launch={"write call": 1.0, "write module": 2.0, "forward call": 9.0})
    calls, modules = (sum(getattr(r, name) for r in counted.records) for name in HOST)
    assert calls > len(counted.records)  # views are calls too
    assert modules == entered(small("gpt2"))
    host = calls + 2.0 * modules
    assert predicted(counted, slow, "write").seconds == pytest.approx(busy + host)
    assert predicted(counted, slow, "write").bound == "launching"
    gpu = replace(slow, kind="cuda", kernel=0.0)
    assert predicted(counted, gpu, "write").seconds == pytest.approx(host)


def test_the_bound_is_what_it_is():
    counted = jobs.train_step(small("gpt2"), Shape(2, 8))
    slow = replace(PLAIN, traffic={"aten::copy_": Grid.constant(1e15, 1)})
    assert predicted(counted, slow, "train").bound == "arithmetic"
    fast = replace(PLAIN, products=of_sheet("h200").products)
    assert predicted(counted, fast, "train").bound == "memory traffic"


def test_a_product_with_few_rows_is_bound_by_memory_however_it_was_measured():
    # As fast as memory brings the weights, and no faster: two operations for four bytes.
    measured = Grid(((1, 1000), (1,), (1,)), (MOVED / 4, 1000 * RATE))
    device = replace(PLAIN, products={"float32": measured}, batched={"float32": measured})
    counted = jobs.step(small("gpt2"), Shape(1, 8))
    found = predicted(counted, device, "write")
    assert found.bound == "memory traffic"
    assert found.seconds > sum(r.executed for r in counted.records) / MOVED


def test_a_recurrence_takes_its_steps_one_after_another():
    counted = jobs.read(small("lstm"), Shape(3, 8))
    (first, _) = (r for r in counted.records if r.name == "regard::recurrence")
    assert first.shape == (8, 3, 32, 128, 32)
    # Small products at a tenth of the rate: only U times h is that small.
    grid = Grid(((3, 24), (1,), (1,)), (RATE / 10, RATE))
    device = replace(PLAIN, products={"float32": grid}, traffic=of_sheet("h200").traffic)
    half = first.executed / 2
    found = taken(first, device, "write", []).seconds
    assert found == pytest.approx(half / RATE + half / (RATE / 10))
    known = replace(device, recurrence={"float32": Grid.constant(RATE / 7, 3)})
    assert taken(first, known, "write", []).seconds == pytest.approx(first.executed * 7 / RATE)


def test_what_was_touched_just_before_comes_no_slower_than_from_far_away():
    # On a GPU a small copy takes long because it is begun, not because of where it lies.
    traffic = {"aten::copy_": Grid(((1000, 10**6, 10**9),), (MOVED / 1000, MOVED, MOVED / 2))}
    device = replace(PLAIN, traffic=traffic)
    counted = jobs.train_step(small("gpt2"), Shape(2, 8))
    record = next(r for r in counted.of("optimizer") if r.name == "aten::_fused_adamw_")
    size = record.read + record.written
    alone = size / traffic["aten::copy_"].at(size)
    times = {10: size / MOVED, 10**6: size / MOVED, 10**9: 2 * size / MOVED}
    for distance, comes in times.items():
        found = taken(record, device, "train", [(size, distance)])
        assert found.seconds == pytest.approx(max(comes, alone))


def test_what_lies_far_is_multiplied_at_the_rate_of_what_lies_far():
    counted = jobs.step(small("gpt2"), Shape(2, 8))
    record = next(r for r in counted.records if r.name == "aten::mm")
    products = {"float32": Grid.constant(RATE, 3), "float32/far": Grid.constant(RATE / 9, 3)}
    device = replace(PLAIN, products=products, traffic=of_sheet("h200").traffic, cache=1000)
    between = (2000 * 1000 / 16) ** 0.5
    times = {1000 / 16: 1.0, between: 3.0, 2000: 9.0, math.inf: 9.0}
    for distance, longer in times.items():
        found = taken(record, device, "write", [(8, distance)])
        assert found.seconds == pytest.approx(longer * record.executed / RATE)


def asked(work="train", rows=2, tokens=8, memory=10**9, **more):
    return Asked(work, Shape(rows, tokens), replace(PLAIN, memory=memory), **more)


def test_what_fits_really_fits_and_one_more_does_not():
    config = small("gpt2")
    peak = jobs.train_step(config, Shape(8, 8)).peak
    found = report(config, asked(memory=peak))
    assert found.rows_that_fit == 8
    assert found.fits
    crowded = report(config, asked(rows=20, memory=peak))
    assert not crowded.fits
    assert crowded.rows_that_fit == 8
    longest = crowded.tokens_that_fit
    assert jobs.train_step(config, Shape(20, longest)).peak <= peak
    assert jobs.train_step(config, Shape(20, longest + 1)).peak > peak


def test_what_fits_of_a_model_that_goes_step_by_step_is_read_off_a_line():
    config, room = small("gru"), 10**6
    found = report(config, asked("read", rows=1, tokens=1, memory=room))
    assert found.fitting.tokens_extrapolated
    assert not found.fitting.rows_extrapolated
    assert found.tokens_that_fit > 100
    assert jobs.read(config, Shape(1, found.tokens_that_fit)).peak == pytest.approx(room, rel=0.1)


def test_what_does_not_lie_on_a_line_is_not_guessed():
    config = small("bahdanau")  # pairs of places are held
    found = report(config, asked(rows=1, tokens=1, memory=10**6))
    assert found.tokens_that_fit == 1
    assert not found.fitting.tokens_extrapolated


def test_rows_that_fit_are_read_off_a_line_where_a_loss_looks_at_a_few_at_a_time(monkeypatch):
    monkeypatch.setattr(r_drop, "NUMBERS", 1 << 8)
    traced: list[int] = []
    counted_for = report_module.counted_for

    def counted(config, given, shape):
        traced.append(shape.rows)
        return counted_for(config, given, shape)

    monkeypatch.setattr(report_module, "counted_for", counted)
    config, twice, room = small("gpt2"), Criterion(r_drop=2.0), 2 * 10**7
    found = report(config, asked(rows=16, memory=room, criterion=twice))
    assert found.fitting.rows_extrapolated
    assert found.rows_that_fit > 40
    assert max(traced) == 16
    held = jobs.train_step(config, Shape(found.rows_that_fit, 8), criterion=twice).peak
    assert held == pytest.approx(room, rel=0.05)


def test_a_model_that_holds_as_much_for_any_short_text_is_counted_with_longer_ones():
    config = replace(small("conv-pairs"), width=256)
    peaks = {jobs.train_step(config, Shape(4, n)).peak for n in (1, 2)}
    assert len(peaks) == 1
    room = 2 * 10**8
    longest = report(config, asked(rows=4, tokens=1, memory=room)).tokens_that_fit
    assert jobs.train_step(config, Shape(4, longest)).peak <= room
    assert jobs.train_step(config, Shape(4, longest + 1)).peak > room


def test_a_model_that_never_fits_says_so():
    found = report(small("gpt2"), asked(memory=10_000))
    assert not found.fits
    assert found.rows_that_fit == found.tokens_that_fit == 0
    assert "smaller model" in advice(found)
    assert "fsdp" in advice(found)


def test_advice_names_the_rows_that_fit_before_anything_else():
    config = small("gpt2")
    peak = jobs.train_step(config, Shape(8, 8)).peak
    assert advice(report(config, asked(rows=20, memory=peak))) == "take 8 rows at once"


def test_advice_for_weights_that_are_too_large_to_read_with_is_half_of_them():
    plain = advice(report(small("gpt2"), asked("read", memory=10_000)))
    assert "bf16-weights" in plain
    assert "fsdp" not in plain
    half = report(small("gpt2"), asked("read", memory=10_000, precision="bf16-weights"))
    assert advice(half) == "choose a smaller model"


def test_processes_share_the_rows_and_add_up_gradients():
    config = small("gpt2")
    alone = report(config, asked(rows=8))
    device = replace(PLAIN, link=1e6)
    shared = report(config, replace(asked(rows=8), processes=4, device=device))
    assert shared.counted.peak < alone.counted.peak
    added = 2 * 3 / 4 * shared.counted.weights / 1e6
    assert shared.seconds == pytest.approx(shared.prediction.seconds + added)
    with pytest.raises(RegardError, match="at least one process"):
        report(config, asked(processes=0))


def test_a_generation_takes_as_long_as_its_parts():
    config = small("gpt2")
    found = report(config, asked("generate", new=5))
    steps = [
        predicted(jobs.write(config, Shape(2, n), 1, room=13), PLAIN, "write").seconds
        for n in range(8, 12)
    ]
    prompt = predicted(jobs.write(config, Shape(2, 8), 0, room=13), PLAIN, "write").seconds
    assert found.seconds == pytest.approx(prompt + sum(steps), rel=1e-3)
    assert found.tokens == 10


def test_a_prompt_and_its_steps_are_drawn_apart_and_the_roof_says_its_rates(tmp_path):
    import matplotlib as mpl

    found = report(small("gpt2"), asked("generate", new=5))
    apart, whole = (sum(p.products for p in parts) for parts in (found.apart, found.parts))
    assert apart == pytest.approx(whole, rel=1e-4)  # each part is rounded
    reading, writing = (
        next(part for part in found.apart if part.place == f"{doing}: head")
        for doing in ("reading", "writing")
    )
    assert reading.products < writing.products
    with mpl.rc_context({"svg.fonttype": "none"}):
        roofline(found, tmp_path / "roof.svg")
    drawn = (tmp_path / "roof.svg").read_text()
    for words in ("reading: ", "writing: ", "1e+09 operations/s", "1e+08 bytes/s"):
        assert words in drawn
