"""Recurrent models write: every search against the twins, which recompute all at every step."""

import itertools
from collections.abc import Sequence
from functools import cache

import pytest
import torch
import twins
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
from regard.models.recurrent.config import RecurrentConfig
from regard.models.recurrent.model import Recurrent
from regard.text.specials import BOS, EOS

TEXTS = {
    "gru": {"cell": "gru", "layers": 2},
    "lstm": {"cell": "lstm", "hidden": 10},
}
PAIRS = {
    "none": {"cell": "lstm", "layers": 2},
    "cho": {"cell": "gru", "input_feeding": True},
    "bahdanau": {"cell": "gru", "attention": "additive"},
    "dot": {"cell": "elman", "attention": "dot"},
    "luong": {"cell": "lstm", "layers": 2, "attention": "general", "input_feeding": True},
}
LOOKING = ["bahdanau", "dot", "luong"]
PROMPTS = [[BOS, *words(count, count)] for count in (0, 3, 1, 5)]


@cache
def recurrent(
    name: str, seed: int = 0, ends: float = 1.0, vocabulary: int = twins.VOCABULARY
) -> Recurrent:
    """A tiny model in float64 with a liking `ends` for </s>; shared, so do not change it."""
    kind = "decoder" if name in TEXTS else "encoder-decoder"
    named = {"layers": 1, "width": 8, "tied": False, "vocabulary": vocabulary}
    named |= {**TEXTS, **PAIRS}[name]
    module: Recurrent = build(RecurrentConfig(kind=kind, **named)).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(0.8 * torch.randn(weight.shape, generator=generator))
        module.head.bias.zero_()
        module.head.bias[EOS] = ends
    return module


@torch.no_grad()
def looked(module: Recurrent, text: Sequence[int], source: Sequence[int]) -> Tensor:
    """How a text looks at its source when it is given: (tokens, source positions)."""
    state = module.start(1, len(text), return_attention=True)
    module(torch.tensor([text]), read(module, [source]), state)
    return state.attention[0, 0, 0]


# --- beam search -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*TEXTS, *PAIRS])
@pytest.mark.parametrize("beams", [1, 4])
def test_beam_search_is_that_of_lists_which_keep_nothing(name: str, beams: int):
    module = recurrent(name, 1)
    beam = Beam(beams, 0.7, n_best=beams)
    found = assert_as_the_twin(module, PROMPTS, [7, 5, 6, 4], beam, sources_for(module, 4, 2))
    assert len({tuple(h.ids) for one in found for h in one.hypotheses}) > beams


@pytest.mark.parametrize("name", ["gru", "none", "luong"])
def test_with_beams_for_everything_the_best_of_all_texts_is_found(name: str):
    module, limit = recurrent(name, 3, vocabulary=9), 3
    source = None if name in TEXTS else [6, 8, 5, EOS]
    beam = Beam(250, 0.6, n_best=100)
    found = found_by(module, [[BOS]], [limit], beam, source and [source], TARGET)[0]
    open_words = [word for word in range(9) if word not in TARGET.never]
    texts = list(itertools.product(open_words, repeat=limit))
    tokens = torch.tensor([[BOS, *text[:-1]] for text in texts])
    with torch.no_grad():
        logprobs = module(tokens, source and read(module, [source] * len(texts))).log_softmax(-1)
    worths = {}
    for text, row in zip(texts, logprobs.tolist(), strict=True):
        end = text.index(EOS) + 1 if EOS in text else limit
        total = sum(row[place][token] for place, token in enumerate(text[:end]))
        worths[text[:end]] = total / end**0.6
    ranked = sorted(worths, key=lambda text: -worths[text])
    assert [tuple(whole(one)) for one in found.hypotheses] == ranked[:100]
    assert [one.worth for one in found.hypotheses] == pytest.approx(
        [worths[text] for text in ranked[:100]]
    )


@pytest.mark.parametrize("name", LOOKING)
@pytest.mark.parametrize("beams", [1, 4])
def test_attention_comes_in_the_order_of_each_answer(name: str, beams: int):
    """Beams change places while they grow; what is told must be what the answer itself saw."""
    module, texts = recurrent(name, 2), sources(3, 9)
    prompts = [[BOS], [BOS, 7, 8, 9], [BOS, 5]]
    beam = Beam(beams, n_best=beams, attention=True, record=True)
    found = found_by(module, prompts, [8, 6, 7], beam, texts)
    for prompt, text, one in zip(prompts, texts, found, strict=True):
        for answer in one.hypotheses:
            seen = looked(module, [*prompt, *answer.ids], text)
            wanted = seen[len(prompt) - 1 :][: len(whole(answer))]
            assert answer.attention.shape == (len(whole(answer)), max(map(len, texts)))
            torch.testing.assert_close(answer.attention[:, : len(text)], wanted)
            assert answer.attention[:, len(text) :].abs().sum() == 0
    if beams > 1:
        steps = [step for one in found for step in one.tree[1:]]
        kept = [[c.parent for c in step if c.fate == "kept"] for step in steps]
        assert any(len({*parents}) < len(parents) for parents in kept)  # they really change


@pytest.mark.parametrize("name", LOOKING)
def test_coverage_counts_what_was_seen(name: str, monkeypatch: pytest.MonkeyPatch):
    module, texts = recurrent(name, 2), sources(3, 9)
    monkeypatch.setattr(twins, "alignment", looked)
    beam = Beam(3, 0.8, coverage_penalty=0.5, n_best=3)
    found = assert_as_the_twin(module, [[BOS]] * 3, [7, 5, 6], beam, texts)
    all_lost = []
    for text, one in zip(texts, found, strict=True):
        for answer in one.hypotheses:
            ids = whole(answer)
            lost = 0.5 * covered(looked(module, [BOS, *answer.ids], text)[: len(ids)])
            assert answer.worth == pytest.approx(answer.logprob / len(ids) ** 0.8 + lost)
            all_lost.append(lost)
    assert min(all_lost) < -0.1


def test_without_attention_there_is_none_to_bring():
    module, texts = recurrent("none"), sources(1, 0)
    with pytest.raises(RegardError, match="no attention, so there is no attention to return"):
        found_by(module, [[BOS]], [4], Beam(2, attention=True), texts)


# --- drawing, scoring, embedding -------------------------------------------------------------


@pytest.mark.parametrize("name", [*TEXTS, *PAIRS])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_is_written_as_if_it_were_alone(name: str, temperature: float):
    module = recurrent(name, 4, ends=0.0)
    texts = sources_for(module, 4, 5)
    asked = [
        Sampling(limit=limit, temperature=temperature, seed=limit, top_k=limit)
        for limit in (6, 9, 4, 8)
    ]
    steps = DecodeBatch.begin(
        module, PROMPTS, asked, context=1000, signs=signs_of(module), memory=read(module, texts)
    )
    found: list[list[int]] = [[], [], [], []]
    while steps.open:
        for token in steps.step():
            found[token.row].append(token.id)
    for row, (prompt, one) in enumerate(zip(PROMPTS, asked, strict=True)):
        assert found[row] == written(module, prompt, one, texts and texts[row])


@pytest.mark.parametrize("name", [*TEXTS, "none", "luong"])
@torch.no_grad()
def test_a_score_is_the_sum_of_what_each_token_has(name: str):
    module = recurrent(name)
    given = [words(count, count) for count in (3, 1, 6, 2)]
    texts = sources_for(module, 4, 5)
    found = scored(TextModel(module, signs_of(module)), given, sources=texts, rows=3)
    for row, (ids, score) in enumerate(zip(given, found, strict=True)):
        memory = texts and read(module, [texts[row]])
        logprobs = module(torch.tensor([[BOS, *ids]]), memory)[0].log_softmax(-1)
        wanted = [float(logprobs[place, token]) for place, token in enumerate([*ids, EOS])]
        assert score.logprobs == pytest.approx(wanted, abs=1e-9)
        assert score.logprob == pytest.approx(sum(wanted), abs=1e-9)


@pytest.mark.parametrize("name", [*TEXTS, "none", "luong"])
@torch.no_grad()
def test_a_vector_of_a_text_is_its_pooled_hidden_vectors(name: str):
    module = recurrent(name)
    given = [words(count, count) for count in (3, 1, 6, 2)]
    for pool in POOLS:
        found = embedded(TextModel(module, signs_of(module)), given, pool=pool, rows=3)
        for ids, vector in zip(given, found, strict=True):
            tokens = torch.tensor([ids])
            hidden = module.hidden(tokens) if name in TEXTS else module.encode(tokens).values
            pooled = {"mean": hidden[0].mean(0), "first": hidden[0, 0], "last": hidden[0, -1]}
            torch.testing.assert_close(vector.double(), pooled[pool], atol=1e-6, rtol=0)


# --- with others -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none", "luong"])
def test_with_a_transformer_it_searches_by_the_mean_of_both(name: str):
    parts = [recurrent(name, 5, vocabulary=9), writer("marian-tiny", 6, 1.0, 9, torch.float64)]
    ensemble, texts = Ensemble(parts), [[6, 8, 5, EOS], [7, EOS]]
    beam = Beam(4, n_best=4, attention=name == "luong")
    found = search(ensemble, [[BOS]] * 2, [5, 5], beam, memory=read(ensemble, texts))
    best = set()
    for text, one in zip(texts, found, strict=True):
        for answer in one.hypotheses:
            tokens = torch.tensor([[BOS, *whole(answer)[:-1]]])
            with torch.no_grad():
                shares = [part(tokens, read(part, [text])).softmax(-1)[0] for part in parts]
            mean = (shares[0] + shares[1]) / 2
            total = sum(float(mean[i, token].log()) for i, token in enumerate(whole(answer)))
            assert answer.logprob == pytest.approx(total, abs=1e-9)
            if beam.attention:
                both = looked(parts[0], [BOS, *answer.ids], text)
                both = (both + alignment(parts[1], [BOS, *answer.ids], text)) / 2
                torch.testing.assert_close(
                    answer.attention[:, : len(text)], both[: len(whole(answer))]
                )
        best.add(tuple(one.hypotheses[0].ids))
    alone = [found_by(part, [[BOS]] * 2, [5, 5], Beam(4), texts) for part in parts]
    assert any(tuple(h.ids) not in best for one in alone for f in one for h in f.hypotheses)


def steps_of(steps: DecodeBatch | Speculation) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in PROMPTS]
    while steps.open:
        for token in steps.step():
            found[token.row].append(token.id)
    return found


@pytest.mark.parametrize(
    ("target", "draft"),
    [("lstm", "gru"), ("gru", "gpt2-tiny"), ("gpt2-tiny", "lstm"), ("lstm", "lstm")],
)
@pytest.mark.parametrize("ahead", [1, 4])
def test_a_draft_changes_no_token(target: str, draft: str, ahead: int):
    """Recurrent states must forget what was proposed in vain, on either side."""
    model, helper = (
        recurrent(name, 2, ends=-2.0)
        if name in TEXTS
        else writer(name, 2, -2.0, dtype=torch.float64)
        for name in (target, draft)
    )
    asked = [Sampling(limit=limit, temperature=0) for limit in (9, 1, 7, 12)]
    plain = steps_of(DecodeBatch.begin(model, PROMPTS, asked, context=40))
    drafted = Speculation.begin(model, helper, PROMPTS, asked, context=40, ahead=ahead)
    assert steps_of(drafted) == plain
    if target == draft:
        assert drafted.acceptance == 1.0
    else:
        assert drafted.accepted < drafted.proposed


@pytest.mark.parametrize("name", ["bahdanau", "luong"])
def test_a_draft_reads_the_source_in_its_own_way(name: str):
    model, helper = recurrent(name, 2, ends=-2.0), recurrent("cho", 2, ends=-2.0)
    texts = sources(4, 3)
    asked = [Sampling(limit=limit, temperature=0) for limit in (9, 1, 7, 12)]
    more = {"context": 40, "signs": TARGET, "memory": read(model, texts)}
    plain = steps_of(DecodeBatch.begin(model, PROMPTS, asked, **more))
    more |= {"memory": read(model, texts), "draft_memory": read(helper, texts)}
    assert steps_of(Speculation.begin(model, helper, PROMPTS, asked, **more)) == plain
