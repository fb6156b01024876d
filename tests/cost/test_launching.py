"""The host's time, shared out among what it does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.cost import jobs
from regard.cost.jobs import Shape
from regard.cost.launching import CAUSES, Sample, fitted, small_models
from regard.cost.predict import host_counts

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


def test_small_models_do_different_shares_of_each_thing():
    """Else nobody could tell what takes the time."""
    for phase, causes in CAUSES.items():
        if len(causes) == 1:
            continue
        shares = set()
        for config in small_models():
            job = jobs.step if phase == "write" else jobs.train_step
            counts = [
                host_counts(record)
                for record in job(config, Shape(1, 4)).records
                if phase in ("write", record.phase)
            ]
            first, second = (sum(c[cause] for c in counts) for cause in causes)
            shares.add(round(second / first, 2))
        assert len(shares) >= 4
