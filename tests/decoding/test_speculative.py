"""A draft may only make writing faster: the same tokens, or tokens of the same distribution."""

import itertools
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from regard.decoding.decode_batch import DecodeBatch, Token
from regard.decoding.search.speculative import Speculation, acceptances, remainder
from regard.decoding.settings import TARGET, TEXT, Sampling
from regard.errors import RegardError
from regard.models.config import ModelConfig
from regard.models.construction import build
from regard.models.construction import build as family
from regard.models.convolution.config import ConvolutionConfig
from regard.models.counting.estimate import estimate
from regard.models.counting.model import NGram, NGramConfig
from regard.models.protocol import closed_up
from regard.models.recurrent.config import RecurrentConfig
from regard.models.transformer.model import Transformer
from regard.models.transformer.presets import preset
from regard.text.specials import BOS, EOS

CONTEXT = 24
PROMPTS = [[BOS], [BOS, 7, 8], [BOS, 5, 9, 6, 12], [BOS, 5, 6], [BOS, *range(5, 19)] + [6] * 8]
LIMITS = (60, 1, 2, 7, 60)


def model(seed: int, name: str = "gpt2-tiny", vocabulary: int = 20, **changes) -> Transformer:
    """Weights drawn wide, so that no two answers are nearly alike; in float64."""
    settings = {"vocabulary": vocabulary, "context": CONTEXT, "layers": 1, **changes}
    module = build(replace(preset(name), **settings)).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() == 2:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3)
    return module


def similar(module: Transformer, seed: int, size: float = 0.05) -> Transformer:
    """The same but for a little noise."""
    copy = build(module.config).double().eval()
    copy.load_state_dict(module.state_dict())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in copy.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.add_(noise * size)
    return copy


class Bigrams(nn.Module):
    """The smallest model of the protocol: what follows depends on the last token alone."""

    class State:
        attention = None

        def __init__(self, rows: int) -> None:
            self.rows = rows

        def reorder(self, rows) -> None:
            self.rows = len(rows)

        def release(self, rows) -> list[int]:
            kept = closed_up([row not in rows for row in range(self.rows)])
            self.rows = len(kept)
            return kept

        def rollback(self, counts) -> None:
            assert len(counts) == self.rows

        def free(self) -> None:
            self.rows = 0

    def __init__(self, seed: int, vocabulary: int = 20) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        table = torch.randn(vocabulary, vocabulary, generator=generator, dtype=torch.float64)
        self.register_buffer("table", table)

    def forward(self, tokens, memory=None, state=None, *, lengths=None, mask=None, last=False):
        logits = self.table[tokens]
        if not last:
            return logits
        ends = torch.full((len(tokens),), tokens.shape[1]) if lengths is None else lengths
        return logits[torch.arange(len(tokens)), torch.as_tensor(ends) - 1][:, None]

    def start(self, batch_size: int, capacity: int, *, return_attention: bool = False):
        return Bigrams.State(batch_size)


class Strict(nn.Module):
    """A model that holds its users to the word of the protocol.

    No more is forgotten than the last call brought, and what padding gives is no number.
    """

    class State:
        attention = None

        def __init__(self, inner) -> None:
            self.inner, self.newest = inner, [0] * inner.rows

        @property
        def rows(self) -> int:
            return self.inner.rows

        def reorder(self, rows) -> None:
            self.inner.reorder(rows)
            self.newest = [0] * self.inner.rows

        def release(self, rows) -> list[int]:
            self.newest = [0] * (self.inner.rows - len(rows))
            return self.inner.release(rows)

        def rollback(self, counts) -> None:
            assert all(count <= new for count, new in zip(counts, self.newest, strict=True))
            self.newest = [new - c for new, c in zip(self.newest, counts, strict=True)]
            self.inner.rollback(counts)

        def free(self) -> None:
            self.inner.free()

    def __init__(self, inner: Transformer) -> None:
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, tokens, memory=None, state=None, *, lengths=None, mask=None, last=False):
        self.calls += 1
        state.newest = [tokens.shape[1]] * len(tokens) if lengths is None else list(lengths)
        real = torch.tensor(state.newest)[:, None]
        logits = self.inner(tokens, memory, state.inner, lengths=lengths, last=last)
        there = torch.arange(logits.shape[1]) < (real.clamp(max=1) if last else real)
        return logits.masked_fill(~there[..., None], torch.nan)

    def start(self, batch_size: int, capacity: int, *, return_attention: bool = False):
        return Strict.State(self.inner.start(batch_size, capacity))


def written(steps: DecodeBatch | Speculation, rows: int) -> list[list[Token]]:
    found: list[list[Token]] = [[] for _ in range(rows)]
    while steps.open:
        for token in steps.step():
            found[token.row].append(token)
    assert steps.step() == []
    return found


def ids(rows: list[list[Token]]) -> list[list[int]]:
    return [[token.id for token in row] for row in rows]


def alike(one: list[list[Token]], other: list[list[Token]]) -> None:
    """The same tokens, ends and log-probabilities."""
    assert ids(one) == ids(other)
    for a, b in zip(itertools.chain(*one), itertools.chain(*other), strict=True):
        assert (a.row, a.end) == (b.row, b.end)
        assert a.logprob == (None if b.logprob is None else pytest.approx(b.logprob, abs=1e-9))
        assert [token for token, _ in a.top] == [token for token, _ in b.top]
        assert [p for _, p in a.top] == pytest.approx([p for _, p in b.top], abs=1e-9)


DRAFTS = {
    "same": lambda target, name: target,
    "similar": lambda target, name: similar(target, 5),
    "different": lambda target, name: model(77, name, layers=2),
    "bigrams": lambda target, name: Bigrams(3),
}


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny"])
def test_at_temperature_0_the_tokens_are_those_of_plain_writing(name, draft):
    reasons = Counter()
    for seed in range(3):
        target = model(seed, name)
        asked = [
            Sampling(limit=limit, temperature=0, logprobs=None if row == 1 else row)
            for row, limit in enumerate(LIMITS)
        ]
        plain = written(DecodeBatch.begin(target, PROMPTS, asked, context=CONTEXT), 5)
        reasons.update(row[-1].end for row in plain)
        drafted = DRAFTS[draft](target, name)
        for ahead in (1, 4, 30):
            steps = Speculation.begin(target, drafted, PROMPTS, asked, context=CONTEXT, ahead=ahead)
            alike(written(steps, 5), plain)
            assert steps.proposed > 0
            if draft == "same":
                assert steps.acceptance == 1.0
    assert {"end", "limit", "room"} <= set(reasons)  # all ends were met


@cache
def counted(smoothing: str = "kneser-ney", vocabulary: int = 20) -> NGram:
    """An n-gram that has counted what a model writes greedily, so that it is often right."""
    target = model(0, vocabulary=vocabulary)
    asked = [Sampling(limit=60, temperature=0)] * len(PROMPTS)
    rows = written(DecodeBatch.begin(target, PROMPTS, asked, context=CONTEXT), len(PROMPTS))
    texts = [[*prompt, *row] for prompt, row in zip(PROMPTS, ids(rows), strict=True)]
    config = NGramConfig(vocabulary, 3, smoothing)
    flat = np.array([token for text in texts for token in text])
    return NGram(config, estimate(flat, 3, vocabulary, BOS, config.rule))


def drawn_wide(config: ModelConfig) -> nn.Module:
    """A model of any family, in float64, whose answers are not nearly alike."""
    module = family(config).double().eval()
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(0.5 * torch.randn(weight.shape, generator=generator))
    return module


SMALL = {"vocabulary": 20, "width": 8, "layers": 1}
FAMILIES = {
    "ngram": counted,
    "lstm": lambda: drawn_wide(RecurrentConfig(cell="lstm", **SMALL)),
    "gru": lambda: drawn_wide(RecurrentConfig(cell="gru", **SMALL)),
    "elman": lambda: drawn_wide(RecurrentConfig(cell="elman", **SMALL)),
    "conv": lambda: drawn_wide(ConvolutionConfig(**SMALL)),
    "transformer": lambda: similar(model(0), 5),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_draft_of_any_family_changes_no_token_of_rows_of_any_limits(name):
    """Rows that are nearly done ask for no proposals while their neighbours do."""
    target, draft = model(0), FAMILIES[name]()
    asked = [Sampling(limit=limit, temperature=0) for limit in LIMITS]
    plain = written(DecodeBatch.begin(target, PROMPTS, asked, context=CONTEXT), 5)
    for ahead in (1, 4):
        steps = Speculation.begin(target, draft, PROMPTS, asked, context=CONTEXT, ahead=ahead)
        alike(written(steps, 5), plain)
        assert steps.proposed > 0
        assert steps.accepted > 0 or name not in ("ngram", "transformer")  # the others guess


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_draft_that_knows_nothing_of_a_row_leaves_it_to_the_model(temperature):
    target, draft = model(1), counted("maximum-likelihood")
    unseen = [BOS, 18, 18, 18]
    assert draft(torch.tensor([unseen]))[0, -1].eq(-torch.inf).all()
    prompts = [unseen, *PROMPTS]
    asked = [Sampling(limit=9, temperature=temperature, seed=seed) for seed in range(6)]
    steps = Speculation.begin(target, draft, prompts, asked, context=CONTEXT)
    found = written(steps, 6)
    assert len(found[0]) == 9 or found[0][-1].end == "end"
    if not temperature:
        alike(found, written(DecodeBatch.begin(target, prompts, asked, context=CONTEXT), 6))


@pytest.mark.parametrize("penalty", [0.5, 1.7])
def test_greedy_with_a_penalty_and_banned_tokens_is_the_same_too(penalty):
    for seed in range(2):
        target = model(seed)
        asked = [
            Sampling(limit=limit, temperature=0, repetition_penalty=penalty, banned=(7, row))
            for row, limit in enumerate(LIMITS)
        ]
        plain = written(DecodeBatch.begin(target, PROMPTS, asked, context=CONTEXT), 5)
        for draft in (target, similar(target, 5), model(9)):
            steps = Speculation.begin(target, draft, PROMPTS, asked, context=CONTEXT)
            alike(written(steps, 5), plain)
            assert (steps.acceptance == 1.0) == (draft is target)


def test_a_draft_that_is_right_saves_calls():
    target = Strict(model(0))
    asked = [Sampling(limit=10, temperature=0)]
    row = written(DecodeBatch.begin(target, [[BOS, 6]], asked, context=CONTEXT), 1)
    plain, target.calls = target.calls, 0
    steps = Speculation.begin(target, target.inner, [[BOS, 6]], asked, context=CONTEXT, ahead=4)
    assert ids(written(steps, 1)) == ids(row)
    assert len(row[0]) == 10  # it does not end early
    assert (plain, target.calls) == (10, 3)  # the prompt; 5 tokens behind it; 5 more
    assert (steps.proposed, steps.accepted) == (8, 8)


def test_neither_model_is_asked_for_more_than_the_protocol_gives():
    target, draft = Strict(model(0)), Strict(similar(model(0), 5, 0.1))
    for temperature in (0, 1):
        asked = [Sampling(limit=n, temperature=temperature, seed=n) for n in LIMITS]
        plain = written(DecodeBatch.begin(target, PROMPTS, asked, context=CONTEXT), 5)
        steps = Speculation.begin(
            target, draft, PROMPTS, asked, context=CONTEXT, draft_context=9, copies=range(5)
        )
        found = written(steps, 5)
        assert 0 < steps.accepted < steps.proposed
        if not temperature:
            alike(found, plain)


def test_a_row_does_not_depend_on_its_neighbours():
    target, draft = model(1), similar(model(1), 5, 0.1)
    asked = [
        Sampling(limit=60, seed=3),
        Sampling(limit=11, seed=4, temperature=0.7, top_k=5, logprobs=2),
        Sampling(limit=60, temperature=0),
        Sampling(limit=9, seed=5, repetition_penalty=1.3, banned=(9,)),
        Sampling(limit=60, seed=6, top_p=0.8, min_p=0.05),
    ]
    together = written(Speculation.begin(target, draft, PROMPTS, asked, context=CONTEXT), 5)
    for row, (prompt, settings) in enumerate(zip(PROMPTS, asked, strict=True)):
        alone = Speculation.begin(target, draft, [prompt], [settings], context=CONTEXT)
        assert ids(written(alone, 1))[0] == ids(together)[row]
    again = Speculation.begin(target, draft, PROMPTS[::-1], asked[::-1], context=CONTEXT)
    assert ids(written(again, 5))[::-1] == ids(together)


def test_no_draft_goes_behind_an_end_a_limit_or_the_context():
    target = model(3)
    for seed in range(12):
        asked = [Sampling(limit=n, seed=seed, temperature=1.5) for n in (0, 1, 2, 9, 60)]
        steps = Speculation.begin(target, target, PROMPTS, asked, context=CONTEXT, ahead=7)
        for prompt, one, row in zip(PROMPTS, asked, written(steps, 5), strict=True):
            room = CONTEXT - len(prompt) + 1
            most = min(one.limit, room)
            assert [token.end for token in row[:-1]] == [None] * (len(row) - 1)
            assert EOS not in [token.id for token in row[:-1]]
            if row and row[-1].id == EOS:
                assert row[-1].end == "end"
            elif row:
                assert len(row) == most
                assert row[-1].end == ("limit" if one.limit <= room else "room")
            else:
                assert one.limit == 0


def test_a_row_that_is_stopped_brings_nothing_more():
    target = model(0)
    asked = [Sampling(limit=20, temperature=0)] * 2
    prompts = [[BOS, 6], [BOS, 8, 9]]
    whole = ids(written(Speculation.begin(target, model(9), prompts, asked, context=CONTEXT), 2))
    steps = Speculation.begin(target, model(9), prompts, asked, context=CONTEXT)
    first = steps.step()
    steps.stop(0)
    rest = written(steps, 2)
    assert rest[0] == []
    assert [t.id for t in first if t.row == 1] + ids(rest)[1] == whole[1]


@pytest.mark.parametrize("reach", [1, 2, 5, 9, 23])
def test_a_draft_of_a_smaller_context_helps_as_far_as_it_reaches(reach):
    target, draft = model(0), model(0, context=reach)
    asked = [Sampling(limit=limit, temperature=0) for limit in LIMITS]
    plain = written(DecodeBatch.begin(target, PROMPTS, asked, context=CONTEXT), 5)
    steps = Speculation.begin(target, draft, PROMPTS, asked, context=CONTEXT, draft_context=reach)
    alike(written(steps, 5), plain)
    assert steps.proposed >= 1


def test_an_encoder_decoder_with_a_draft_that_reads_the_source_itself():
    target = model(0, "marian-tiny", layers=2)
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(5, 20, (3, 6), generator=generator)
    lengths = torch.tensor([6, 2, 4])
    asked = [Sampling(limit=n, temperature=0, logprobs=1) for n in (60, 5, 9, 60)]
    prompts, copies = [[BOS], [BOS, 8, 9], [BOS]], [0, 1, 1, 2]
    given = {"context": CONTEXT, "signs": TARGET, "copies": copies}
    memory = target.encode(source, lengths)
    plain = written(DecodeBatch.begin(target, prompts, asked, memory=memory, **given), 4)
    assert ids(plain)[0] != ids(plain)[3]  # the source matters
    for draft in (target, similar(target, 3), model(8, "marian-tiny", width=16)):
        steps = Speculation.begin(
            target,
            draft,
            prompts,
            asked,
            memory=memory,
            draft_memory=draft.encode(source, lengths),
            **given,
        )
        alike(written(steps, 4), plain)
        assert (steps.acceptance == 1.0) == (draft is target)


def test_mistakes_are_one_sentence():
    target = model(0)
    for draft, last in ((model(0, vocabulary=19), 19), (Bigrams(0, vocabulary=19), 18)):
        with pytest.raises(RegardError, match="19 tokens, the model 20; they must share"):
            Speculation.begin(target, draft, [[BOS, last]], [Sampling()], context=CONTEXT)
    with pytest.raises(RegardError, match="at least one token at a time, not 0"):
        Speculation.begin(target, target, [[BOS]], [Sampling()], context=CONTEXT, ahead=0)
    with pytest.raises(RegardError, match="context holds 24"):
        Speculation.begin(target, target, [[BOS] * 25], [Sampling()], context=CONTEXT)


# The distribution.

WORDS = 10  # five of them can be written, and the end


def exact(target: Transformer, prompt: list[int], asked: Sampling, length: int) -> dict:
    """The probability of every text of up to `length` tokens, all of it by hand."""
    found = {}
    beginnings = {(): 1.0}
    for _ in range(length):
        longer = {}
        for text, chance in beginnings.items():
            with torch.no_grad():
                logits = target(torch.tensor([[*prompt, *text]]))[0, -1].tolist()
            for token, share in by_hand(logits, {*prompt, *text}, asked).items():
                goal = found if token == EOS else longer
                goal[(*text, token)] = chance * share
        beginnings = longer
    return found | beginnings


def by_hand(logits: list[float], standing: set[int], asked: Sampling) -> dict[int, float]:
    penalty = asked.repetition_penalty
    scores = {
        token: (score / penalty if score > 0 else score * penalty) if token in standing else score
        for token, score in enumerate(logits)
        if token not in (*TEXT.never, *asked.banned)
    }
    weights = {token: np.exp(score / asked.temperature) for token, score in scores.items()}
    order = sorted(weights, key=lambda token: -weights[token])[: asked.top_k or None]
    total = sum(weights[token] for token in order)
    kept, so_far = [], 0.0
    for token in order:
        if so_far >= asked.top_p * total or weights[token] < asked.min_p * weights[order[0]]:
            break
        kept.append(token)
        so_far += weights[token]
    return {token: weights[token] / so_far for token in kept}


def drawn(steps: DecodeBatch | Speculation, rows: int) -> Counter:
    return Counter(tuple(row) for row in ids(written(steps, rows)))


FILTERED = Sampling(
    limit=3, temperature=1.4, top_k=5, top_p=0.93, min_p=0.03, repetition_penalty=1.3, banned=(7,)
)


@pytest.mark.parametrize(("asked", "rows"), [(Sampling(limit=3), 20_000), (FILTERED, 40_000)])
def test_many_texts_follow_the_models_distribution(asked, rows):
    sizes = {"vocabulary": WORDS, "width": 8, "heads": 1, "hidden": 8}
    target, draft = model(4, **sizes), similar(model(4, **sizes), 2, 0.35)
    prompt = [BOS, 6]
    each = [replace(asked, seed=seed) for seed in range(rows)]
    copies = [0] * rows
    steps = Speculation.begin(
        target, draft, [prompt], each, context=CONTEXT, copies=copies, ahead=2
    )
    counts = drawn(steps, rows)
    assert 0.3 < steps.acceptance < 0.9  # both ways are taken often
    chances = exact(target, prompt, asked, 3)
    assert sum(chances.values()) == pytest.approx(1)
    assert set(counts) <= set(chances)  # nothing that a filter rules out
    assert len(chances) > 40
    likely = [text for text, chance in chances.items() if chance * rows >= 5]
    rare = 1 - sum(chances[text] for text in likely)
    expected = [chances[text] * rows for text in likely] + [rare * rows]
    seen = [counts[text] for text in likely]
    seen.append(rows - sum(seen))
    if expected[-1] < 5:
        expected[-2:], seen[-2:] = [sum(expected[-2:])], [sum(seen[-2:])]
    assert stats.chisquare(seen, expected).pvalue > 1e-3
    # And they are what plain writing draws.
    few = [replace(one, seed=one.seed + rows) for one in each[:10_000]]
    writing = DecodeBatch.begin(target, [prompt], few, context=CONTEXT, copies=copies[: len(few)])
    plain = drawn(writing, len(few))
    common = [text for text in likely if chances[text] * len(few) >= 5]
    table = [[found[text] for text in common] for found in (counts, plain)]
    assert stats.chi2_contingency(table).pvalue > 1e-3


def chances(most: int) -> st.SearchStrategy[Tensor]:
    """Distributions over so many tokens; some have no chance at all."""
    weights = st.lists(st.one_of(st.just(0), st.integers(1, 10**6)), min_size=most, max_size=most)
    return weights.filter(any).map(lambda w: torch.tensor(w, dtype=torch.float64) / sum(w))


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(chances(n), chances(n))))
def test_over_all_proposals_and_answers_the_model_is_what_comes_out(pair):
    p, q = pair
    outcome = torch.zeros_like(p)
    for proposal in q.nonzero()[:, 0].tolist():
        (share,) = acceptances(p[None], q[None], [proposal])
        assert 0 <= share <= 1
        rest = remainder(p[None], q[None])[0]
        outcome += q[proposal] * (1 - share) * rest / rest.sum()
        outcome[proposal] += q[proposal] * share
    torch.testing.assert_close(outcome, p, atol=1e-12, rtol=0)


@given(chances(5))
def test_without_a_proposal_the_model_itself_is_drawn_from(p):
    nothing = torch.zeros_like(p)[None]
    assert acceptances(p[None], nothing, [0]) == [0.0]
    assert torch.equal(remainder(p[None], nothing)[0], p)
    # Where nothing is left over but by rounding, too.
    assert torch.equal(remainder(p[None], p[None])[0], p)
