"""The host's time, shared out among what it does."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from regard.costs import jobs
from regard.costs.device.host_overhead import CAUSES, Sample, fitted, models
from regard.costs.predict import host_counts
from regard.costs.trace.tracer import tracing

COUNTS = [{"call": 60, "module": 20}, {"call": 200, "module": 61}, {"call": 50, "module": 18}]
seconds = st.floats(1e-6, 1e-4)


@given(seconds, seconds)
def test_times_that_are_sums_of_causes_are_taken_apart(call, module):
    hosts = [c["call"] * call + c["module"] * module for c in COUNTS]
    samples = [Sample(c, host, 3 * host) for c, host in zip(COUNTS, hosts, strict=True)]
    assert fitted(samples, ("call", "module")) == pytest.approx(
        {"call": call, "module": module}, rel=1e-6
    )


@given(st.lists(st.floats(1e-6, 1e-2), min_size=3, max_size=3))
def test_no_cause_takes_less_than_nothing(times):
    samples = [Sample(c, time, time) for c, time in zip(COUNTS, times, strict=True)]
    found = fitted(samples, ("call", "module"))
    assert found
    assert all(value >= 0 for value in found.values())


def test_a_model_whose_host_does_next_to_nothing_decides_nothing():
    samples = [Sample(c, c["call"] * 1e-5, c["call"] * 1e-5) for c in COUNTS]
    idle = Sample({"call": 50, "module": 10}, -1e-6, 1.0)
    found = fitted([*samples, idle], ("call",))
    assert found["call"] == pytest.approx(1e-5, rel=1e-3)


def test_models_do_different_shares_of_each_thing():
    """Else nobody could tell what takes the time."""
    for phase, causes in CAUSES.items():
        shares: list[set[float]] = [set() for _ in causes[1:]]
        for config, shape in models():
            job = jobs.step if phase == "write" else jobs.train_step
            counts = [
                host_counts(record)
                for record in job(config, shape).records
                if phase in ("write", record.phase)
            ]
            first, *others = (sum(c[cause] for c in counts) for cause in causes)
            for found, other in zip(shares, others, strict=True):
                found.add(round(other / first, 2))
        assert all(len(found) >= 4 for found in shares)


def test_what_threads_share_is_counted_apart():
    """From 32,768 numbers on, but not products."""
    with torch.no_grad(), tracing(nn.Module()) as tracer:
        few, many = (torch.ones(n, 128, device="meta") for n in (255, 256))
        _ = few + few, many + many, many @ many.mT
    assert [host_counts(record)["shared"] for record in tracer.records[-3:]] == [0, 1, 0]
