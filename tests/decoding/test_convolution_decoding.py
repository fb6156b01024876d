"""Convolutional models write: every search against the twins, which recompute all at every step."""

from collections.abc import Sequence
from functools import cache, partial

import pytest
import torch
import twins
from test_recurrent_decoding import PROMPTS, looked, recurrent, steps_of
from torch import Tensor
from twins import (
    alignment,
    assert_as_the_twin,
    covered,
    found_by,
    read,
    signs_of,
    sources,
    sources_for,
    whole,
    words,
    writer,
    written,
)

import regard
from regard.decoding.decode_batch import DecodeBatch
from regard.decoding.embedding import POOLS, embedded
from regard.decoding.scoring import scored
from regard.decoding.search.beam import search
from regard.decoding.search.ensemble import Ensemble
from regard.decoding.search.speculative import Speculation
from regard.decoding.settings import TARGET, Beam, Sampling
from regard.decoding.text_model import TextModel
from regard.errors import RegardError
from regard.models.construction import build
from regard.models.convolution.config import ConvolutionConfig
from regard.models.convolution.model import Convolution
from regard.text.specials import BOS, EOS

TEXTS = {
    "text": {"dilation_growth": 2, "layers": 3},  # sees 15 tokens, so that they never forget any
    "text near": {"kernel": 2},  # sees 3
}
PAIRS = {
    "pairs": {"heads": 2, "layers": 3, "encoder_layers": 1},
    "pairs grown": {"dilation_growth": 2},
}


@cache
def convolution(
    name: str, seed: int = 0, ends: float = 1.0, vocabulary: int = twins.VOCABULARY
) -> Convolution:
    """A tiny model in float64 with a liking `ends` for </s>; shared, so do not change it."""
    kind = "decoder" if name in TEXTS else "encoder-decoder"
    named = {"layers": 2, "width": 8, "tied": False, "vocabulary": vocabulary}
    named |= {**TEXTS, **PAIRS}[name]
    module: Convolution = build(ConvolutionConfig(kind=kind, **named)).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part, weight in module.named_parameters():
            centre = 1.0 if "norm" in part and part.endswith("weight") else 0.0
            weight.copy_(centre + 0.4 * torch.randn(weight.shape, generator=generator))
        module.head.bias.zero_()
        module.head.bias[EOS] = ends
    return module


@torch.no_grad()
def seen_by(module: Convolution, text: Sequence[int], source: Sequence[int]) -> Tensor:
    """What the tape says of the upper half of the layers, for a text that is given: the mean of
    their heads, (tokens, source positions)."""
    with regard.record(module) as tape:
        module(torch.tensor([text]), read(module, [source]))
    layers = module.config.layers
    upper = [tape[f"decoder.{layer}.cross"].probabilities for layer in range(layers // 2, layers)]
    return torch.stack(upper).mean((0, 2))[0]


# --- beam search -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*TEXTS, *PAIRS])
@pytest.mark.parametrize("beams", [1, 4])
def test_beam_search_is_that_of_lists_which_keep_nothing(name: str, beams: int):
    module = convolution(name, 1)
    beam = Beam(beams, 0.7, n_best=beams)
    found = assert_as_the_twin(module, PROMPTS, [7, 5, 6, 4], beam, sources_for(module, 4, 2))
    assert len({tuple(h.ids) for one in found for h in one.hypotheses}) > beams


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("beams", [1, 4])
def test_attention_comes_in_the_order_of_each_answer(name: str, beams: int):
    """Beams change places while they grow; what is told must be what the answer itself saw."""
    module, texts = convolution(name, 2), sources(3, 9)
    prompts = [[BOS], [BOS, 7, 8, 9], [BOS, 5]]
    beam = Beam(beams, n_best=beams, attention=True, record=True)
    found = found_by(module, prompts, [8, 6, 7], beam, texts)
    for prompt, text, one in zip(prompts, texts, found, strict=True):
        for answer in one.hypotheses:
            seen = seen_by(module, [*prompt, *answer.ids], text)
            wanted = seen[len(prompt) - 1 :][: len(whole(answer))]
            assert answer.attention.shape == (len(whole(answer)), max(map(len, texts)))
            torch.testing.assert_close(answer.attention[:, : len(text)], wanted)
            assert answer.attention[:, len(text) :].abs().sum() == 0
    if beams > 1:
        steps = [step for one in found for step in one.tree[1:]]
        kept = [[c.parent for c in step if c.fate == "kept"] for step in steps]
        assert any(len({*parents}) < len(parents) for parents in kept)  # they really change


def test_coverage_counts_what_was_seen(monkeypatch: pytest.MonkeyPatch):
    module, texts = convolution("pairs", 2), sources(3, 9)
    monkeypatch.setattr(twins, "alignment", seen_by)
    beam = Beam(3, 0.8, coverage_penalty=0.5, n_best=3)
    found = assert_as_the_twin(module, [[BOS]] * 3, [7, 5, 6], beam, texts)
    all_lost = []
    for text, one in zip(texts, found, strict=True):
        for answer in one.hypotheses:
            ids = whole(answer)
            lost = 0.5 * covered(seen_by(module, [BOS, *answer.ids], text)[: len(ids)])
            assert answer.worth == pytest.approx(answer.logprob / len(ids) ** 0.8 + lost)
            all_lost.append(lost)
    assert min(all_lost) < -0.1


def test_without_a_source_there_is_no_attention_to_bring():
    with pytest.raises(RegardError, match="reads no source, so there is no attention to return"):
        found_by(convolution("text"), [[BOS]], [4], Beam(2, attention=True))


# --- drawing, scoring, embedding -------------------------------------------------------------


@pytest.mark.parametrize("name", [*TEXTS, *PAIRS])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_is_written_as_if_it_were_alone(name: str, temperature: float):
    module = convolution(name, 4, ends=0.0)
    texts = sources_for(module, 4, 5)
    asked = [
        Sampling(limit=limit, temperature=temperature, seed=limit, top_k=limit)
        for limit in (6, 9, 4, 8)
    ]
    steps = DecodeBatch.begin(
        module, PROMPTS, asked, context=1000, signs=signs_of(module), memory=read(module, texts)
    )
    found = steps_of(steps)
    for row, (prompt, one) in enumerate(zip(PROMPTS, asked, strict=True)):
        assert found[row] == written(module, prompt, one, texts and texts[row])
    assert len({*map(tuple, found)}) > 1


@pytest.mark.parametrize("name", [*TEXTS, *PAIRS])
@torch.no_grad()
def test_a_score_is_the_sum_of_what_each_token_has(name: str):
    module = convolution(name)
    given = [words(count, count) for count in (3, 1, 6, 2)]
    texts = sources_for(module, 4, 5)
    found = scored(TextModel(module, signs_of(module)), given, sources=texts, rows=3)
    for row, (ids, score) in enumerate(zip(given, found, strict=True)):
        memory = texts and read(module, [texts[row]])
        logprobs = module(torch.tensor([[BOS, *ids]]), memory)[0].log_softmax(-1)
        wanted = [float(logprobs[place, token]) for place, token in enumerate([*ids, EOS])]
        assert score.logprobs == pytest.approx(wanted, abs=1e-9)
        assert score.logprob == pytest.approx(sum(wanted), abs=1e-9)


@pytest.mark.parametrize("name", [*TEXTS, *PAIRS])
@torch.no_grad()
def test_a_vector_of_a_text_is_its_pooled_hidden_vectors(name: str):
    module = convolution(name)
    given = [words(count, count) for count in (3, 1, 6, 2)]
    for pool in POOLS:
        found = embedded(TextModel(module, signs_of(module)), given, pool=pool, rows=3)
        for ids, vector in zip(given, found, strict=True):
            tokens = torch.tensor([ids])
            hidden = module.hidden(tokens) if name in TEXTS else module.encode(tokens).values
            pooled = {"mean": hidden[0].mean(0), "first": hidden[0, 0], "last": hidden[0, -1]}
            torch.testing.assert_close(vector.double(), pooled[pool], atol=1e-6, rtol=0)


# --- with others -----------------------------------------------------------------------------


def test_with_other_families_it_searches_by_the_mean_of_all():
    parts = [
        convolution("pairs", 5, vocabulary=9),
        recurrent("luong", 5, vocabulary=9),
        writer("marian-tiny", 6, 1.0, 9, torch.float64),
    ]
    ensemble, texts = Ensemble(parts), [[6, 8, 5, EOS], [7, EOS]]
    beam = Beam(4, n_best=4, attention=True)
    found = search(ensemble, [[BOS]] * 2, [5, 5], beam, memory=read(ensemble, texts))
    best = set()
    for text, one in zip(texts, found, strict=True):
        for answer in one.hypotheses:
            tokens = torch.tensor([[BOS, *whole(answer)[:-1]]])
            with torch.no_grad():
                shares = [part(tokens, read(part, [text])).softmax(-1)[0] for part in parts]
            mean = sum(shares) / 3
            total = sum(float(mean[i, token].log()) for i, token in enumerate(whole(answer)))
            assert answer.logprob == pytest.approx(total, abs=1e-9)
            given = [BOS, *answer.ids], text
            looks = seen_by(parts[0], *given), looked(parts[1], *given), alignment(parts[2], *given)
            torch.testing.assert_close(
                answer.attention[:, : len(text)], (sum(looks) / 3)[: len(whole(answer))]
            )
        best.add(tuple(one.hypotheses[0].ids))
    alone = [found_by(part, [[BOS]] * 2, [5, 5], Beam(4), texts) for part in parts]
    assert any(tuple(h.ids) not in best for one in alone for f in one for h in f.hypotheses)


MAKERS = {
    "gpt2-tiny": partial(writer, dtype=torch.float64),
    "lstm": recurrent,
    "text": convolution,
    "text near": convolution,
}


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        ("gpt2-tiny", "text"),
        ("text", "gpt2-tiny"),
        ("lstm", "text near"),
        ("text near", "text"),
        ("text", "text"),
    ],
)
@pytest.mark.parametrize("ahead", [1, 4])
def test_a_draft_changes_no_token(target: str, draft: str, ahead: int):
    """What was proposed in vain must be forgotten, on either side."""
    model, helper = (MAKERS[name](name, 2, -2.0) for name in (target, draft))
    asked = [Sampling(limit=limit, temperature=0) for limit in (9, 1, 7, 12)]
    plain = steps_of(DecodeBatch.begin(model, PROMPTS, asked, context=40))
    drafted = Speculation.begin(model, helper, PROMPTS, asked, context=40, ahead=ahead)
    assert steps_of(drafted) == plain
    if target == draft:
        assert drafted.acceptance == 1.0
    else:
        assert drafted.accepted < drafted.proposed


def test_a_draft_reads_the_source_in_its_own_way():
    model, helper = recurrent("bahdanau", 2, ends=-2.0), convolution("pairs", 2, ends=-2.0)
    texts = sources(4, 3)
    asked = [Sampling(limit=limit, temperature=0) for limit in (9, 1, 7, 12)]
    for one, other in ((model, helper), (helper, model)):
        more = {"context": 40, "signs": TARGET, "memory": read(one, texts)}
        plain = steps_of(DecodeBatch.begin(one, PROMPTS, asked, **more))
        more |= {"memory": read(one, texts), "draft_memory": read(other, texts)}
        assert steps_of(Speculation.begin(one, other, PROMPTS, asked, **more)) == plain
