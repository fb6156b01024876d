"""What a token is drawn from, against the rules written out, `transformers`, and counting."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from twins import plain_distribution

from regard.decoding import sampling
from regard.decoding.sampling import FIRST_LOOK, SamplingBatch, dice, distribution, draw
from regard.decoding.settings import TEXT, Beam, Sampling, SpecialTokens
from regard.errors import RegardError

NOTHING = SpecialTokens(never=())  # every token may be written


def drawn_from(
    logits: Tensor,
    asked: list[Sampling],
    standing: list[list[int]] | None = None,
    signs: SpecialTokens = NOTHING,
) -> np.ndarray:
    columns = SamplingBatch.of(asked, signs, logits.shape[-1], logits.device)
    held = None
    if standing is not None:
        held = torch.zeros(logits.shape, dtype=torch.bool)
        for row, tokens in enumerate(standing):
            held[row, tokens] = True
    return distribution(logits, columns, held).numpy()


def assert_as_written_out(logits, asked, standing=None, signs=NOTHING) -> None:
    found = drawn_from(logits, asked, standing, signs)
    for row, one in enumerate(asked):
        stands = standing[row] if standing else []
        wanted = plain_distribution(logits[row].tolist(), one, signs.never, stands)
        np.testing.assert_allclose(found[row], wanted, rtol=1e-9, atol=1e-12)


# Few values, so that many are equal. A share such as 0.5 may be met exactly by a sum, where
# rounding would decide; odd ones are not.
tied = st.lists(st.sampled_from([-3.0, -1.5, 0.0, 0.25, 2.0]), min_size=6, max_size=30)
loose = st.lists(st.floats(-20, 20, width=32), min_size=6, max_size=30)
rows = st.one_of(tied, loose)
shares = st.sampled_from([0.0137, 0.1731, 0.3313, 0.5923, 0.7919, 0.9431, 0.9973])

wishes = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.9, 10.0]),
    top_k=st.integers(0, 40),
    top_p=st.one_of(st.just(1.0), shares),
    min_p=st.one_of(st.just(0.0), shares),
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.3, 4.0]),
    banned=st.lists(st.integers(0, 4), max_size=3).map(tuple),
)

FILTERS = {
    "temperature": {"temperature": st.floats(0.05, 50)},
    "greedy": {"temperature": st.just(0.0)},
    "top_k": {"top_k": st.integers(1, 40)},
    "top_p": {"top_p": shares},
    "min_p": {"min_p": shares},
    "banned": {"banned": st.lists(st.integers(0, 4), max_size=5).map(tuple)},
    "repetition_penalty": {"repetition_penalty": st.floats(0.1, 10)},
}


@pytest.mark.parametrize("name", FILTERS)
@given(st.data())
def test_each_filter_alone_is_its_definition(name, data):
    asked = data.draw(st.builds(Sampling, **FILTERS[name]))
    values = torch.tensor([data.draw(rows)])
    standing = [data.draw(st.lists(st.integers(0, values.shape[1] - 1)))]
    assert_as_written_out(values, [asked], standing)


@given(st.data())
def test_all_together_in_the_order_that_is_documented_and_each_row_by_its_own(data):
    size = data.draw(st.integers(6, 30))
    values = st.one_of(tied, loose).map(lambda row: (row * size)[:size])
    logits = torch.tensor(data.draw(st.lists(values, min_size=1, max_size=5)))
    asked = [data.draw(wishes) for _ in logits]
    standing = [data.draw(st.lists(st.integers(0, size - 1), max_size=8)) for _ in logits]
    assert_as_written_out(logits, asked, standing)
    assert_as_written_out(logits, asked, standing, TEXT)


def test_the_order_of_the_filters_shows():
    """Cases that another order would answer otherwise."""
    probabilities = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
    logits = probabilities.log()
    # Of the two left by top_k, 0.4 has 4/7 > 0.55; of all four, two would be needed.
    assert drawn_from(logits, [Sampling(top_k=2, top_p=0.55)]).tolist() == [[1, 0, 0, 0]]
    # What is banned is gone before: then 0.3 is the best of 0.6.
    found = drawn_from(logits, [Sampling(banned=(0,), top_p=0.49)])
    assert found.tolist() == [[0, 1, 0, 0]]
    # The temperature comes before top_p: hot enough, all are alike and three of four are needed.
    found = drawn_from(logits, [Sampling(temperature=1e6, top_p=0.6)])
    assert (found > 0).tolist() == [[True, True, True, False]]
    # and before min_p: cold, nothing has half of the best.
    found = drawn_from(logits, [Sampling(temperature=0.1, min_p=0.5)])
    assert found.tolist() == [[1, 0, 0, 0]]
    # A penalty comes before the ranks: the best, standing already, falls behind the third.
    found = drawn_from(logits.add(3), [Sampling(repetition_penalty=4.0, top_k=2)], [[0]])
    assert (found > 0).tolist() == [[False, True, True, False]]


def test_a_penalty_makes_any_token_that_stands_less_probable_whatever_its_sign():
    logits = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    found = drawn_from(logits, [Sampling(repetition_penalty=2.0)], [[0, 2]])
    weights = np.exp([0.5, 1.0, -2.0, -1.0])
    np.testing.assert_allclose(found[0], weights / weights.sum(), rtol=1e-12)


def test_among_equals_the_first_are_left_and_exactly_so_many():
    found = drawn_from(torch.zeros(1, 50), [Sampling(top_k=3)])
    assert found[0].nonzero()[0].tolist() == [0, 1, 2]
    found = drawn_from(torch.zeros(1, 50), [Sampling(top_p=0.0601)])
    assert found[0].nonzero()[0].tolist() == [0, 1, 2, 3]
    found = drawn_from(torch.zeros(1, 50), [Sampling(temperature=0)])
    assert found[0].nonzero()[0].tolist() == [0]


# --- large vocabularies ----------------------------------------------------------------------

LARGE = 5000


def large(kind: str, seed: int) -> Tensor:
    """Logits over a vocabulary of which only a part is looked at first; (vocabulary,)."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(LARGE, generator=generator)
    if kind == "peaked":
        return noise * 6
    if kind == "flat":
        return noise * 0.05
    return (noise * 4).to(torch.bfloat16).float()  # "tied": bfloat16 has few numbers


large_wishes = [
    Sampling(top_p=0.9137),
    Sampling(top_p=0.00173),
    Sampling(top_p=0.99991),
    Sampling(top_k=40),
    Sampling(top_k=FIRST_LOOK),
    Sampling(top_k=FIRST_LOOK + 1),
    Sampling(top_k=3000),
    Sampling(top_k=LARGE + 1),
    Sampling(top_k=500, top_p=0.9137),
    Sampling(top_k=3000, top_p=0.9137),
    Sampling(top_k=3000, top_p=0.1731, temperature=3.0),
    Sampling(min_p=0.0137),
    Sampling(top_p=0.9431, min_p=0.1731),
    Sampling(temperature=0.0, top_k=3000),
    Sampling(),
]


@pytest.mark.parametrize("kind", ["peaked", "flat", "tied"])
@pytest.mark.parametrize("wish", range(len(large_wishes)))
def test_what_is_looked_at_first_changes_nothing(kind, wish):
    assert_as_written_out(large(kind, wish)[None], [large_wishes[wish]])


def test_a_row_of_a_large_vocabulary_does_not_depend_on_its_neighbours():
    """Some neighbours make all be looked at; which of equals are left must not change by that."""
    kinds = ["peaked", "flat", "tied"]
    logits = torch.stack([large(kinds[row % 3], row) for row in range(3 * len(large_wishes))])
    asked = [large_wishes[row // 3] for row in range(len(logits))]
    together = drawn_from(logits, asked)
    for row, one in enumerate(asked):
        np.testing.assert_array_equal(drawn_from(logits[row : row + 1], [one])[0], together[row])


def test_the_shortcut_is_really_taken(monkeypatch):
    """Else the tests above would test one path only."""
    widths = []
    topk = Tensor.topk

    def listening(self, k, *arguments, **named):
        widths.append(k)
        return topk(self, k, *arguments, **named)

    monkeypatch.setattr(Tensor, "topk", listening)
    drawn_from(large("peaked", 0)[None], [Sampling(top_p=0.5)])
    drawn_from(large("flat", 0)[None], [Sampling(top_p=0.9)])
    drawn_from(large("flat", 0)[None], [Sampling(top_k=2000)])
    assert widths[:2] == [FIRST_LOOK, FIRST_LOOK]
    assert set(widths[2:]) == {LARGE}
    assert sampling.FIRST_LOOK == 1024


# --- against transformers ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "warpers"),
    [
        (Sampling(temperature=0.7), [hf.TemperatureLogitsWarper(0.7)]),
        (Sampling(top_k=9), [hf.TopKLogitsWarper(9)]),
        (Sampling(top_p=0.8237), [hf.TopPLogitsWarper(0.8237)]),
        (Sampling(min_p=0.0731), [hf.MinPLogitsWarper(0.0731)]),
        (Sampling(repetition_penalty=1.7), [hf.RepetitionPenaltyLogitsProcessor(1.7)]),
        (Sampling(banned=(3, 8)), [hf.NoBadWordsLogitsProcessor([[3], [8]], 1)]),
        (
            Sampling(
                repetition_penalty=1.7,
                banned=(3, 8),
                temperature=1.3,
                top_k=30,
                top_p=0.9137,
                min_p=0.0931,
            ),
            [
                hf.RepetitionPenaltyLogitsProcessor(1.7),
                hf.NoBadWordsLogitsProcessor([[3], [8]], 1),
                hf.TemperatureLogitsWarper(1.3),
                hf.TopKLogitsWarper(30),
                hf.TopPLogitsWarper(0.9137),
                hf.MinPLogitsWarper(0.0931),
            ],
        ),
    ],
)
def test_it_is_what_transformers_draws_from(asked, warpers):
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(20, 80, generator=generator).double() * 3
    stands = torch.randint(80, (20, 12), generator=generator)
    found = drawn_from(logits, [asked] * 20, stands.tolist())
    scores = hf.LogitsProcessorList(warpers)(stands, logits.clone())
    wanted = scores.softmax(-1).numpy()
    assert asked == Sampling(temperature=asked.temperature) or not np.allclose(
        wanted, logits.softmax(-1), atol=1e-3
    )
    np.testing.assert_allclose(found, wanted, atol=1e-12)


# --- extremes --------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-300, 1e-3, 1.0, 1e300])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e38])
def test_no_temperature_and_no_logit_makes_numbers_overflow(temperature, scale):
    logits = torch.tensor([[1.0, -1.0, 0.5, 0.9, -1.0, 1.0]]) * scale
    found = drawn_from(
        logits, [Sampling(temperature=temperature)], signs=SpecialTokens(never=(5,))
    )[0]
    assert found.sum() == pytest.approx(1)
    assert found[5] == 0
    assert found.argmax() == 0
    if temperature < scale / 1e3:
        assert found.tolist() == [1, 0, 0, 0, 0, 0]


def test_a_model_may_rule_tokens_out_itself():
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0]])
    for asked in (Sampling(), Sampling(top_k=3), Sampling(top_p=0.99), Sampling(min_p=0.1)):
        assert drawn_from(logits, [asked]).tolist() == [[0, 0.5, 0, 0.5]]


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_model_without_numbers_is_one_sentence(wrong):
    logits = torch.zeros(3, 8)
    logits[1, 6] = wrong
    with pytest.raises(RegardError, match=r"^the model gives no numbers .*damaged$"):
        drawn_from(logits, [Sampling()] * 3)


# --- drawing ---------------------------------------------------------------------------------


def test_a_draw_is_where_the_sum_passes_the_number():
    chances = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]], dtype=torch.float64)
    numbers = [0.0, 0.2499, 0.25, 0.7499, 0.75, math.nextafter(1, 0)]
    assert draw(chances.expand(6, -1), numbers) == [1, 1, 3, 3, 4, 4]


@pytest.mark.parametrize("size", [5e-324, 1e-320, 1e-300, 1.0])
def test_a_draw_does_not_fall_behind_all_chances_however_small_they_are(size):
    """The least numbers have no room below them for a share of the sum."""
    chances = torch.tensor([[0.0, size, 0.0, 0.0], [0.0, size, size, 0.0]], dtype=torch.float64)
    assert draw(chances, [math.nextafter(1, 0)] * 2) == [1, 2]


@given(rows, st.floats(0, 1, exclude_max=True), wishes)
def test_a_draw_has_probability(values, number, asked):
    chances = torch.from_numpy(drawn_from(torch.tensor([values]), [asked]))
    assert chances[0, draw(chances, [number])[0]] > 0


@pytest.mark.parametrize(
    "asked",
    [
        Sampling(),
        Sampling(temperature=0.5),
        Sampling(temperature=2.0, top_k=9),
        Sampling(top_p=0.8),
        Sampling(min_p=0.2, banned=(6, 7)),
    ],
)
def test_of_100_000_draws_each_token_has_its_share(asked):
    logits = torch.linspace(-2, 2, 14)[None]
    wanted = plain_distribution(logits[0].tolist(), asked, TEXT.never)
    columns = SamplingBatch.of([asked], TEXT, 14, logits.device)
    chances = distribution(logits, columns).expand(100_000, -1)
    counts = np.bincount(draw(chances, dice(7).random(100_000).tolist()), minlength=14)
    possible = wanted > 0
    assert counts[~possible].sum() == 0
    assert stats.chisquare(counts[possible], wanted[possible] * 100_000).pvalue > 1e-3
    # The test can tell a share that is 5 % off.
    other = wanted.copy()
    other[other.argmax()] *= 1.05
    other /= other.sum()
    assert stats.chisquare(counts[possible], other[possible] * 100_000).pvalue < 1e-3


def test_seeds_reproduce_differ_and_are_nobody_elses():
    torch.manual_seed(5)
    np.random.seed(5)
    before = torch.rand(1), np.random.rand()
    torch.manual_seed(5)
    np.random.seed(5)
    numbers = [dice(seed).random(20).tolist() for seed in (1, 1, 2, 2**63 - 1)]
    assert numbers[0] == numbers[1]
    assert len({*map(tuple, numbers)}) == 3
    assert (torch.rand(1), np.random.rand()) == before


# --- what is refused -------------------------------------------------------------------------

WRONG = {
    "temperature": [-1, -1e-9, math.nan, math.inf, "hot", None, True],
    "top_k": [-1, 1.5, math.nan, True, None],
    "top_p": [0, 0.0, -0.1, 1.0001, math.nan, "all"],
    "min_p": [-0.1, 1.1, math.nan, None],
    "repetition_penalty": [0, -1, math.nan, math.inf],
    "limit": [-1, 2.0, math.nan],
    "seed": [-1, 2**63, 0.5],
    "logprobs": [-1, 1.0],
    "banned": [(-1,), (0.5,), ("a",), (math.nan,)],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in WRONG.items() for v in vs])
def test_an_impossible_wish_is_one_sentence_that_names_it(name, value):
    with pytest.raises(RegardError, match=rf"^sampling: {name} must be [^\n]*$"):
        Sampling(**{name: value})


def test_all_impossible_wishes_are_told_at_once():
    with pytest.raises(RegardError) as caught:
        Sampling(limit=-1, temperature=math.nan, top_p=2)
    assert [line for line in str(caught.value).splitlines() if line.startswith("  - ")] == [
        "  - limit must be a whole number, 0 or more, not -1",
        "  - temperature must be a number, 0 or more, not nan",
        "  - top_p must be a number above 0, 1 at most, not 2",
    ]


def test_a_banned_token_that_does_not_exist_is_one_sentence():
    with pytest.raises(RegardError, match=r"^banned token 30 does not exist: there are 30 tokens$"):
        drawn_from(torch.zeros(1, 30), [Sampling(banned=(3, 30))])


@pytest.mark.parametrize("signs", [NOTHING, TEXT])
def test_all_tokens_banned_is_one_sentence(signs):
    asked = Sampling(banned=tuple(range(30)))
    assert (drawn_from(torch.zeros(1, 30), [replace(asked, banned=())], signs=signs) > 0).any()
    with pytest.raises(RegardError, match=r"^every token is banned, so nothing can be written$"):
        drawn_from(torch.zeros(2, 30), [Sampling(), asked], signs=signs)


def test_a_vocabulary_without_some_signs_is_no_harm():
    assert drawn_from(torch.zeros(1, 4), [Sampling()], signs=TEXT).tolist() == [[0, 0, 1, 0]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"seed": "x"},
        {"seed": None},
        {"seed": True},
        {"banned": 3},
        {"banned": None},
        {"banned": (True,)},
        {"top_k": 1.5},
        {"repetition_penalty": 1e-320},
        {"temperature": "hot"},
        {"logprobs": -1},
    ],
)
def test_a_wish_of_the_wrong_kind_is_one_sentence(wrong):
    with pytest.raises(RegardError, match=f"^sampling: {next(iter(wrong))} must be "):
        Sampling(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"beams": None}, {"n_best": "a"}, {"coverage_penalty": "x"}, {"length_penalty": 11}]
)
def test_a_search_of_the_wrong_kind_is_one_sentence(wrong):
    with pytest.raises(RegardError, match=f"^beam search: {next(iter(wrong))} must be "):
        Beam(**wrong)


def test_a_model_that_allows_nothing_is_one_sentence():
    with pytest.raises(RegardError, match="no probability to any token"):
        drawn_from(torch.full((1, 30), -math.inf), [Sampling()])


def test_what_is_exactly_at_a_filters_edge():
    """Shares that floats hold exactly: of equals half are enough; what equals the best stays."""
    found = drawn_from(torch.zeros(1, 4), [Sampling(top_p=0.5)])
    assert found.tolist() == [[0.5, 0.5, 0, 0]]
    found = drawn_from(torch.tensor([[0.0, 0.0, -1.0]]), [Sampling(min_p=1.0)])
    assert found.tolist() == [[0.5, 0.5, 0]]


@pytest.mark.parametrize("seed", range(20))
def test_a_share_at_the_edge_does_not_feel_its_neighbours(seed):
    """A flat neighbour makes the look wide; sums must not be made in another order for that."""
    generator = torch.Generator().manual_seed(seed)
    logits = 6 * torch.randn(1, 4 * FIRST_LOOK, generator=generator)
    weights = logits[0].double().sub(logits.max()).exp().sort(descending=True).values
    place = int(torch.randint(3, 40, (), generator=generator))
    edge = float(weights[:place].sum() / logits.double().sub(logits.max()).exp().sum())
    asked = Sampling(top_p=edge)
    alone = drawn_from(logits, [asked])
    flat = torch.zeros_like(logits)
    beside = drawn_from(torch.cat((flat, logits)), [Sampling(top_p=0.9), asked])
    np.testing.assert_array_equal(beside[1], alone[0])
