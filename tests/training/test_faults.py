"""What goes wrong is judged on the device as a plain twin of it judges in Python."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from regard.training.optimization.faults import DECAY, RIPPLE, WARM, Faults, Guard

NAN, INF = math.nan, math.inf


class Twin:
    """A guard in plain numbers, which sums over all losses before each time anew."""

    def __init__(self, spike, sticky):
        self.spike, self.sticky = spike, sticky
        self.good = []
        self.not_finite = self.spikes = self.in_a_row = 0
        self.first = (-1, -1.0, -1.0)

    def judge(self, step, loss, norm):
        finite = math.isfinite(loss) and math.isfinite(norm)
        high = finite and self.spike > 0 and self.high(loss)
        self.not_finite += not finite
        self.spikes += high
        fault, quiet = high or not finite, self.first[0] < 0
        if fault and quiet:
            self.first = (step, loss, norm)
        allowed = not fault and (quiet or not self.sticky)
        self.in_a_row = 0 if allowed else self.in_a_row + fault
        if allowed:
            self.good.append(loss)
        return allowed

    def high(self, loss):
        if len(self.good) < WARM:
            return False
        weights = [DECAY**age for age in reversed(range(len(self.good)))]
        total = sum(weights)
        mean = sum(w * x for w, x in zip(weights, self.good, strict=True)) / total
        spread = sum(w * (x - mean) ** 2 for w, x in zip(weights, self.good, strict=True)) / total
        return loss > mean + self.spike * math.sqrt(spread + (RIPPLE * mean) ** 2 + RIPPLE**4)

    def look(self):
        return Faults(self.not_finite, self.spikes, self.in_a_row, *self.first)


def judged(guard: Guard, step: int, loss: float, norm: float = 1.0) -> bool:
    return guard.judge(step, torch.tensor(loss), torch.tensor(norm)).item()


def verdicts(guard: Guard, losses: list[float]) -> list[bool]:
    return [judged(guard, step, loss) for step, loss in enumerate(losses)]


def noisy(count: int, level: float = 3.0, spread: float = 0.1, seed: int = 0) -> list[float]:
    drawn = torch.randn(count, generator=torch.Generator().manual_seed(seed))
    return (level + spread * drawn).tolist()


BROKEN = st.sampled_from([(NAN, 1.0), (INF, INF), (-INF, 1.0), (3.0, NAN), (3.0, INF), (NAN, NAN)])
SPIKES = st.tuples(st.floats(2, 2.0**100, width=32), st.floats(0, 2.0**100, width=32))
EVENTS = st.dictionaries(st.integers(0, 150), BROKEN | SPIKES, max_size=12)


def happened(seed, level, events):
    """A run's losses and norms as float32 has them, some of which went wrong."""
    pairs = [(loss, 1.0) for loss in noisy(150, level, 0.05 * level, seed)]
    for step, pair in events.items():
        pairs[step:step] = [pair]
    return [torch.tensor(pair) for pair in pairs]


@given(
    seed=st.integers(0, 99),
    level=st.sampled_from([1e-3, 0.7, 11.0]),
    events=EVENTS,
    spike=st.sampled_from([0.0, 3.0, 8.0]),
    sticky=st.booleans(),
    forgiven=st.integers(1, 200),
)
def test_every_verdict_and_count_is_the_plain_twins(seed, level, events, spike, sticky, forgiven):
    guard, twin = Guard("cpu", spike, sticky), Twin(spike, sticky)
    for step, (loss, norm) in enumerate(happened(seed, level, events)):
        allowed = guard.judge(step, loss, norm)
        assert allowed.item() == twin.judge(step, loss.item(), norm.item())
        assert repr(guard.look()) == repr(twin.look())  # by their text: NaN is not itself
        if step % forgiven == forgiven - 1:
            guard.forgive()
            twin.first = (-1, -1.0, -1.0)


@given(seed=st.integers(0, 99), events=EVENTS, stop=st.integers(0, 150), sticky=st.booleans())
def test_a_restored_guard_goes_on_as_if_it_had_never_stopped(seed, events, stop, sticky):
    guard, later = Guard("cpu", 4.0, sticky), Guard("cpu", 4.0, sticky)
    for step, (loss, norm) in enumerate(happened(seed, 3.0, events)):
        if step == stop:
            saved = {name: tensor.clone() for name, tensor in guard.tensors().items()}
            for name, tensor in later.tensors().items():
                tensor.copy_(saved[name])
        verdict = guard.judge(step, loss, norm)
        if step >= stop:
            assert later.judge(step, loss, norm) == verdict
            for name, tensor in later.tensors().items():
                same = tensor.view(torch.int64) == guard.tensors()[name].view(torch.int64)
                assert same.all()


@pytest.mark.parametrize(
    "losses",
    [
        [0.01 * step for step in range(500)],
        [3 + 0.002 * step + ripple for step, ripple in enumerate(noisy(2000, 0.0, 0.02))],
        [11 * math.exp(-step / 20) + 0.1 for step in range(500)],
        [2 + 9 / (1 + step) + ripple for step, ripple in enumerate(noisy(500, 0.0, 0.1))],
        [2.5 + 1e-4 * (step % 2) for step in range(500)],
        [2.5] * 100 + [2.51] * 100,
        [0.0] * 100 + [1e-6] * 100,
        [*noisy(WARM - 1), 99.0],  # no loss is judged before so many are known
    ],
    ids=["line", "drift", "fall", "steep fall", "flicker", "constant", "zero", "start"],
)
def test_drift_a_quick_fall_and_ripples_are_no_spikes(losses):
    guard = Guard("cpu", 6.0, sticky=False)
    assert all(verdicts(guard, losses))
    assert guard.look() == Faults(0, 0, 0, -1, -1, -1)


def test_a_spike_is_one_right_after_the_warm_up_and_leaves_no_trace_in_the_statistics():
    guard = Guard("cpu", 6.0, sticky=False)
    assert all(verdicts(guard, noisy(WARM)))
    moments = guard.moments.clone()
    assert [judged(guard, step, 5.0) for step in range(WARM, WARM + 30)] == [False] * 30
    assert torch.equal(guard.moments, moments)
    assert guard.look() == Faults(0, 30, 30, WARM, 5.0, 1.0)
    assert judged(guard, WARM + 30, 3.0)
    assert guard.look().in_a_row == 0
    assert not judged(Guard("cpu", 6.0, sticky=False), 0, INF)  # but this needs no warm-up


def test_without_a_spike_set_any_finite_loss_is_good():
    guard = Guard("cpu", 0.0, sticky=False)
    largest = torch.finfo(torch.float32).max
    assert all(verdicts(guard, [*noisy(99), largest, -largest]))
    assert judged(guard, 102, largest, largest)


def test_a_sticky_guard_refuses_everything_until_it_is_forgiven():
    guard = Guard("cpu", 0.0, sticky=True)
    assert verdicts(guard, [3.0, 3.0, NAN, 3.0, NAN, 3.0]) == [True, True, *[False] * 4]
    seen = guard.look()
    assert repr(guard.look()) == repr(seen)  # looking changes nothing
    assert (seen.not_finite, seen.in_a_row, seen.first) == (2, 2, 2)
    assert math.isnan(seen.loss)
    guard.forgive()
    assert guard.look() == Faults(2, 0, 2, -1, -1, -1)
    assert judged(guard, 6, 3.0)
    assert guard.look() == Faults(2, 0, 0, -1, -1, -1)


def test_late_steps_are_told_exactly():
    guard = Guard("cpu", 0.0, sticky=False)
    assert not judged(guard, (1 << 40) + 1, 2.0, INF)
    assert guard.look() == Faults(1, 0, 1, (1 << 40) + 1, 2.0, INF)


@pytest.mark.parametrize("spike", [0.0, 6.0])
@pytest.mark.parametrize("sticky", [False, True])
def test_judging_never_asks_the_device(spike, sticky):
    with FakeTensorMode():  # there are no numbers here to ask for
        guard = Guard("cpu", spike, sticky)
        allowed = guard.judge(0, torch.tensor(1.0), torch.tensor(1.0))
        assert (allowed.shape, allowed.dtype) == ((), torch.bool)
        with pytest.raises(DataDependentOutputException):
            allowed.item()
    on_meta = Guard("meta", spike, sticky).judge(0, *torch.ones(2, device="meta"))
    assert on_meta.device.type == "meta"


def test_losses_in_other_numbers_are_judged_too():
    guard = Guard("cpu", 4.0, sticky=False)
    for step, loss in enumerate(noisy(60)):
        for dtype in (torch.bfloat16, torch.float64):
            assert guard.judge(step, torch.tensor(loss, dtype=dtype), torch.tensor(1.0))
    assert not guard.judge(60, torch.tensor(9.0, dtype=torch.bfloat16), torch.tensor(1.0))
