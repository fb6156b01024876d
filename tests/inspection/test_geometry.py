"""Which keys a query can select: against a linear program, by certificate, and after LayerNorm."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog, nnls
from torch import Tensor
from torch.nn import functional as F

from regard.errors import RegardError
from regard.inspection.geometry import deviation, normalised, selectable, selecting_query

SEEDS = st.integers(0, 2**31)


def gaussian(seed: int, keys: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(keys, width, generator=generator, dtype=torch.float64)


def rivals(keys: Tensor, index: int) -> Tensor:
    """The directions, of norm 1, from one key to the others; for keys that are all distinct."""
    others = torch.arange(len(keys)) != index
    return F.normalize(keys[others] - keys[index], dim=-1)


def margin(keys: Tensor, index: int) -> float:
    """The most by which a query with entries within ±1 prefers key `index`: a linear program."""
    away = rivals(keys, index).numpy()
    found = linprog(
        c=[0.0] * keys.shape[1] + [-1.0],  # over (query, margin), the largest margin
        A_ub=np.hstack([away, np.ones((len(away), 1))]),  # q·(k' - k) + margin <= 0
        b_ub=np.zeros(len(away)),
        bounds=[(-1, 1)] * keys.shape[1] + [(0, None)],
    )
    assert found.success
    return float(found.x[-1])


def certified(keys: Tensor) -> list[bool]:
    """Which keys have a selecting query, having checked that each one given selects its key."""
    verdicts = []
    for index in range(len(keys)):
        query = selecting_query(keys, index)
        if query is not None:
            scores = keys.double() @ query
            assert (scores == scores.max()).nonzero().flatten().tolist() == [index]
            assert query.norm() == pytest.approx(1)
        verdicts.append(query is not None)
    return verdicts


@given(SEEDS, st.integers(1, 40), st.integers(2, 64))
def test_normalised_keys_are_orthogonal_to_ones_with_norm_root_width(
    seed: int, count: int, width: int
):
    keys = normalised(3 * gaussian(seed, count, width) + 2)
    zero, one = torch.zeros(count).double(), torch.ones(count).double()
    torch.testing.assert_close(keys @ torch.ones(width).double(), zero, atol=1e-10, rtol=0)
    torch.testing.assert_close(keys.norm(dim=-1), width**0.5 * one, atol=1e-10, rtol=0)
    measured = deviation(keys)
    torch.testing.assert_close(measured.along_ones, zero, atol=1e-10, rtol=0)
    torch.testing.assert_close(measured.relative_norm, one, atol=1e-10, rtol=0)


@pytest.mark.parametrize("epsilon", [0.0, 1e-5, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normalised_is_layer_norm(epsilon: float, dtype: torch.dtype):
    keys = (gaussian(0, 50, 24) + 1).to(dtype)
    torch.testing.assert_close(
        normalised(keys, epsilon), F.layer_norm(keys, keys.shape[1:], eps=epsilon)
    )


def test_deviation_of_keys_that_were_not_normalised():
    measured = deviation(torch.tensor([[2.0, 2, 2, 2], [3, -3, 3, -3], [-4, 0, 0, 0]]))
    assert measured.along_ones.tolist() == [4, 0, -2]
    assert measured.relative_norm.tolist() == [2, 3, 2]


@pytest.mark.parametrize(("width", "count"), [(2, 60), (3, 60), (5, 80)])
def test_selectable_as_the_linear_program_says(width: int, count: int):
    for seed in range(3):
        keys = gaussian(seed, count, width)
        expected = [margin(keys, index) > 1e-6 for index in range(count)]
        assert 0 < sum(expected) < count
        assert certified(keys) == expected
        assert selectable(keys).tolist() == expected


@given(SEEDS, st.integers(2, 12), st.integers(1, 4))
def test_small_integer_keys_as_the_linear_program_says(seed: int, count: int, width: int):
    """Integers put keys on edges and faces of the hull, where none of them wins strictly."""
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randint(-2, 3, (count, width), generator=generator).double()
    keys, copies = keys.unique(dim=0, return_counts=True)
    expected = [len(keys) == 1 or margin(keys, index) > 1e-6 for index in range(len(keys))]
    assert selectable(keys).tolist() == certified(keys) == expected
    again = selectable(keys.repeat_interleave(copies, dim=0))
    unique = (copies == 1).repeat_interleave(copies)
    assert again.tolist() == (torch.tensor(expected).repeat_interleave(copies) & unique).tolist()


def test_of_a_grid_only_the_corners_can_be_selected():
    grid = torch.cartesian_prod(*[torch.arange(4.0)] * 3)
    corners = ((grid == 0) | (grid == 3)).all(-1)
    assert selectable(grid).tolist() == certified(grid) == corners.tolist()
    turn = torch.linalg.qr(gaussian(0, 3, 3)).Q
    assert torch.equal(selectable(grid.double() @ turn + 5), corners)


def test_the_centre_of_a_square_is_selectable_only_with_layer_norm():
    centre = torch.tensor([3.0, 1.0, -1.0, -3.0]).double()
    square = [centre + torch.tensor([a, b, 0, 0]) for a in (-1, 1) for b in (-1, 1)]
    keys = torch.stack([*square, centre])
    assert selectable(keys).tolist() == [True] * 4 + [False]
    assert selecting_query(keys, 4) is None
    assert certified(normalised(keys)) == [True] * 5


@given(SEEDS, st.integers(1, 100), st.integers(3, 16))
def test_all_distinct_normalised_keys_are_selectable(seed: int, count: int, width: int):
    keys = normalised(gaussian(seed, count, width))
    assert selectable(keys).all()
    assert all(certified(keys))
    assert (keys @ keys.T).argmax(-1).tolist() == list(range(count))  # each by itself as the query


def test_a_gain_and_a_bias_leave_all_selectable_and_a_narrow_head_does_not():
    keys = normalised(gaussian(0, 100, 16))
    gain, bias, projection = gaussian(1, 1, 16), gaussian(2, 1, 16), gaussian(3, 16, 16)
    assert selectable((keys * gain + bias) @ projection).all()
    assert not selectable(keys @ projection[:, :3]).all()


@given(SEEDS, st.integers(3, 40), st.integers(2, 6))
def test_the_query_wins_by_as_much_as_any_can(seed: int, count: int, width: int):
    """Its margin is the distance from 0 to the hull of the directions, here by another solver.

    The least |Pᵀu|² + (Σu - 1)² over u >= 0 is x²/(1 + x²) with x the distance.
    """
    keys = gaussian(seed, count, width)
    for index in range(min(count, 5)):
        away = rivals(keys, index)
        target = np.append(np.zeros(width), 1.0)
        residual = nnls(np.vstack([away.T.numpy(), np.ones(count - 1)]), target)[1]
        query = selecting_query(keys, index)
        least = 0.0 if query is None else float(-(away @ query).max())
        assert least == pytest.approx((residual**2 / (1 - residual**2)) ** 0.5, rel=1e-6, abs=1e-6)


@given(SEEDS, st.integers(-150, 150), st.floats(-10, 10))
def test_verdicts_do_not_depend_on_scale_or_place(seed: int, exponent: int, shift: float):
    keys = gaussian(seed, 30, 3)
    assert torch.equal(selectable((keys + shift) * 10.0**exponent), selectable(keys))


def test_an_outlier_does_not_hide_the_others():
    square = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1], [0, 0]]).double()
    far = torch.tensor([[1e12, 1e12]]).double()  # now (1, 1) lies on the way to it
    assert certified(torch.cat([square, far])) == [False, True, True, True, False, True]


def test_equal_keys_are_not_selectable_and_a_lone_key_is():
    keys = torch.tensor([[1.0, 0], [0, 1], [1, 0], [-1, -1]])
    assert selectable(keys).tolist() == certified(keys) == [False, True, False, True]
    for lone in (torch.zeros(1, 3), torch.ones(1, 1)):
        assert selectable(lone).tolist() == certified(lone) == [True]
    assert selectable(torch.zeros(0, 3)).tolist() == []


def test_a_key_that_only_rounding_puts_off_a_segment_is_not_selectable():
    ends = gaussian(0, 40, 30)
    between = 0.3 * ends[:20] + 0.7 * ends[20:]
    assert certified(torch.cat([ends, between])) == [True] * 40 + [False] * 20


@pytest.mark.parametrize(("height", "wins"), [(1e-6, True), (1e-9, False), (0.0, False)])
def test_a_win_by_less_than_the_narrowest_angle_does_not_count(height: float, wins: bool):
    keys = torch.tensor([[-1.0, 0], [1, 0], [0, -5], [0, height]]).double()
    assert selectable(keys).tolist() == certified(keys) == [True, True, True, wins]


def test_many_wide_keys():
    """Normalised keys all win; points between them do not, and change nothing for the rest."""
    outer = normalised(gaussian(0, 950, 64))
    inner = torch.softmax(4 * gaussian(1, 50, 950), -1) @ outer
    keys = torch.cat([outer, inner])
    assert selectable(keys).tolist() == [True] * 950 + [False] * 50
    assert certified(keys[:4]) == [True] * 4


def test_keys_as_a_model_gives_them_need_no_preparation():
    keys = gaussian(0, 40, 3).float().requires_grad_()
    query = selecting_query(keys, int(keys.norm(dim=-1).argmax()))
    assert query is not None
    assert (query.dtype, query.requires_grad) == (torch.float64, False)
    assert torch.equal(selectable(keys), selectable(keys.detach().double()))


NAN = torch.tensor([[1.0, float("nan")]])
FLAT = torch.tensor([[1.0, 2.0], [0.1, 0.1]])


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda: selectable(torch.ones(3)), r"shape \(3,\)"),
        (lambda: deviation(torch.ones(2, 3, 4)), r"shape \(2, 3, 4\)"),
        (lambda: selectable(torch.ones(3, 0)), r"shape \(3, 0\)"),
        (lambda: selectable(NAN), "not finite"),
        (lambda: normalised(NAN / 0), "not finite"),
        (lambda: deviation(NAN), "not finite"),
        (lambda: selecting_query(torch.eye(3), 3), "key 3 does not exist: there are 3 keys"),
        (lambda: selecting_query(torch.eye(3), -1), "key -1 does not exist"),
        (lambda: selecting_query(torch.ones(0, 3), 0), "key 0 does not exist"),
        (lambda: normalised(FLAT), "key 1 has no variance"),
        (lambda: normalised(FLAT, -1e-5), "negative"),
    ],
)
def test_bad_input_is_one_sentence(act, says: str):
    with pytest.raises(RegardError, match=says) as raised:
        act()
    assert "\n" not in str(raised.value)
