"""Models of every family write: each search against twins that recompute all at every step."""

import itertools
from copy import deepcopy
from dataclasses import replace
from functools import cache

import every_family
import pytest
import torch
import twins
from every_family import EVERY, LOOKING, ONE_OF_EACH, READERS, counted
from test_written_rows import begun, together, tokens_of, wish
from torch import Tensor
from twins import (
    assert_as_the_twin,
    covered,
    found_by,
    read,
    signs_of,
    sources,
    sources_for,
    whole,
    words,
    written,
)

from regard.decoding.decode_batch import DecodeBatch
from regard.decoding.embedding import POOLS, embedded
from regard.decoding.scoring import scored
from regard.decoding.search.beam import search
from regard.decoding.search.ensemble import Ensemble
from regard.decoding.search.speculative import Speculation
from regard.decoding.settings import Beam, Sampling
from regard.decoding.text_model import TextModel
from regard.errors import RegardError
from regard.models.construction import build
from regard.models.network import SequenceModule
from regard.text.specials import BOS, EOS

PROMPTS = [[BOS, *words(count, count)] for count in (0, 3, 1, 5)]
ROWS = 33
# One of each family and kind that writes texts, with attention and without.
TEXTS = [name for name in ONE_OF_EACH if EVERY[name].task in ("causal", "sequence-to-sequence")]
SOURCED = [name for name in TEXTS if name in READERS]
CONTINUING = [name for name in TEXTS if name not in READERS]
ATTENDING = [name for name in TEXTS if name in LOOKING]
EMBEDDING = [name for name in TEXTS if name in every_family.LEARNING]


@cache
def writing(
    name: str, seed: int = 0, ends: float = 1.0, vocabulary: int = twins.VOCABULARY
) -> SequenceModule:
    """A small model in float64 with a liking `ends` for </s>; shared, so do not change it."""
    config = replace(EVERY[name], vocabulary=vocabulary)
    if name not in every_family.LEARNING:
        return counted(config, seed)
    # A head of its own: tied to random embeddings, a model repeats its last token for ever.
    chosen = {"tied": False, "head_bias": True}
    more = {key: chosen[key] for key in chosen if every_family.has(name, key)}
    module = build(replace(config, **more)).double().eval()
    every_family.draw(module, seed)
    with torch.no_grad():
        module.head.bias.zero_()
        module.head.bias[EOS] = ends
    return module


@torch.no_grad()
def looked(module: SequenceModule, text: list[int], source: list[int]) -> Tensor:
    """How a text attends to its source when it is given, in the upper half of the layers."""
    state = module.start(1, len(text), return_attention=True)
    module(torch.tensor([text]), read(module, [source]), state)
    layers = state.attention.shape[1]  # (1, layers, heads, tokens, source positions)
    return state.attention[0, layers // 2 :].mean((0, 1))


def test_every_family_that_writes_texts_is_here():
    for task, names in (("causal", CONTINUING), ("sequence-to-sequence", SOURCED)):
        able = {EVERY[name].family for name in EVERY if EVERY[name].task == task}
        assert {EVERY[name].family for name in names} == able


# --- beam search -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("beams", [1, 4])
def test_beam_search_is_that_of_lists_which_keep_nothing(name: str, beams: int):
    module = writing(name, 1)
    beam = Beam(beams, 0.7, n_best=beams)
    found = assert_as_the_twin(module, PROMPTS, [7, 5, 6, 4], beam, sources_for(module, 4, 2))
    assert len({tuple(h.ids) for one in found for h in one.hypotheses}) > beams


@pytest.mark.parametrize("name", TEXTS)
def test_with_beams_for_everything_the_best_of_all_texts_is_found(name: str):
    module, limit = writing(name, 3, vocabulary=9), 3
    signs = signs_of(module)
    source = [6, 8, 5, EOS] if name in SOURCED else None
    beam = Beam(250, 0.6, n_best=100)
    found = found_by(module, [[BOS]], [limit], beam, source and [source], signs)[0]
    open_words = [word for word in range(9) if word not in signs.never]
    texts = list(itertools.product(open_words, repeat=limit))
    tokens = torch.tensor([[BOS, *text[:-1]] for text in texts])
    with torch.no_grad():
        logprobs = module(tokens, source and read(module, [source] * len(texts))).log_softmax(-1)
    worths = {}
    for text, row in zip(texts, logprobs.tolist(), strict=True):
        end = text.index(EOS) + 1 if EOS in text else limit
        total = sum(row[place][token] for place, token in enumerate(text[:end]))
        worths[text[:end]] = total / end**0.6
    best = sorted(worths.values(), reverse=True)[:100]
    assert [one.worth for one in found.hypotheses] == pytest.approx(best, abs=1e-5)
    assert [worths[tuple(whole(one))] for one in found.hypotheses] == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("name", ATTENDING)
@pytest.mark.parametrize("beams", [1, 4])
def test_attention_comes_in_the_order_of_each_answer(name: str, beams: int):
    """Beams change places while they grow; what is told must be what the answer itself saw."""
    module, texts = writing(name, 2), sources(3, 9)
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


@pytest.mark.parametrize("name", ATTENDING)
def test_coverage_counts_what_was_seen(name: str, monkeypatch: pytest.MonkeyPatch):
    module, texts = writing(name, 2), sources(3, 9)
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


@pytest.mark.parametrize("name", [name for name in TEXTS if name not in ATTENDING])
def test_without_attention_there_is_none_to_bring(name: str):
    module = writing(name)
    with pytest.raises(RegardError, match="so there is no attention to return"):
        found_by(module, [[BOS]], [4], Beam(2, attention=True), sources_for(module, 1, 0))


# --- drawing, scoring, embedding -------------------------------------------------------------


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_is_written_as_if_it_were_alone(name: str, temperature: float):
    module = writing(name, 4, ends=0.0)
    texts = sources_for(module, 4, 5)
    asked = [
        Sampling(limit=limit, temperature=temperature, seed=limit, top_k=limit)
        for limit in (6, 9, 4, 8)
    ]
    context = min(1000, module.config.context)
    found = steps_of(
        DecodeBatch.begin(
            module,
            PROMPTS,
            asked,
            context=context,
            signs=signs_of(module),
            memory=read(module, texts),
        )
    )
    for row, (prompt, one) in enumerate(zip(PROMPTS, asked, strict=True)):
        assert found[row] == written(module, prompt, one, texts and texts[row])
    assert len({*map(tuple, found)}) > 1


@pytest.mark.parametrize("name", TEXTS)
@torch.no_grad()
def test_a_score_is_the_sum_of_what_each_token_has(name: str):
    module = writing(name)
    given = [words(count, count) for count in (3, 1, 6, 2)]
    texts = sources_for(module, 4, 5)
    found = scored(TextModel(module, signs_of(module)), given, sources=texts, rows=3)
    for row, (ids, score) in enumerate(zip(given, found, strict=True)):
        memory = texts and read(module, [texts[row]])
        logprobs = module(torch.tensor([[BOS, *ids]]), memory)[0].log_softmax(-1)
        wanted = [float(logprobs[place, token]) for place, token in enumerate([*ids, EOS])]
        assert score.logprobs == pytest.approx(wanted, abs=1e-6)
        assert score.logprob == pytest.approx(sum(wanted), abs=1e-6)


@pytest.mark.parametrize("name", EMBEDDING)
@torch.no_grad()
def test_a_vector_of_a_text_is_its_pooled_hidden_vectors(name: str):
    module = writing(name)
    given = [words(count, count) for count in (3, 1, 6, 2)]
    for pool in POOLS:
        found = embedded(TextModel(module, signs_of(module)), given, pool=pool, rows=3)
        for ids, vector in zip(given, found, strict=True):
            tokens = torch.tensor([ids])
            hidden = module.encode(tokens).values if name in SOURCED else module.hidden(tokens)
            pooled = {"mean": hidden[0].mean(0), "first": hidden[0, 0], "last": hidden[0, -1]}
            torch.testing.assert_close(vector.double(), pooled[pool], atol=1e-6, rtol=0)


# --- models of several families together -----------------------------------------------------


@pytest.mark.parametrize("attention", [True, False])
def test_an_ensemble_of_all_families_searches_by_the_mean_of_all(attention: bool):
    names = ATTENDING if attention else SOURCED
    parts = [writing(name, 5, vocabulary=9) for name in names]
    ensemble, texts = Ensemble(parts), [[6, 8, 5, EOS], [7, EOS]]
    beam = Beam(4, n_best=4, attention=attention)
    found = search(ensemble, [[BOS]] * 2, [5, 5], beam, memory=read(ensemble, texts))
    best = set()
    for text, one in zip(texts, found, strict=True):
        for answer in one.hypotheses:
            tokens = torch.tensor([[BOS, *whole(answer)[:-1]]])
            with torch.no_grad():
                shares = [part(tokens, read(part, [text])).softmax(-1)[0] for part in parts]
            mean = sum(shares) / len(parts)
            total = sum(float(mean[i, token].log()) for i, token in enumerate(whole(answer)))
            assert answer.logprob == pytest.approx(total, abs=1e-9)
            if attention:
                seen = sum(looked(part, [BOS, *answer.ids], text) for part in parts) / len(parts)
                torch.testing.assert_close(
                    answer.attention[:, : len(text)], seen[: len(whole(answer))]
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


# Each writes what the next one proposes, and each what it proposes itself.
DRAFTS = [
    *zip(CONTINUING, [*CONTINUING[1:], CONTINUING[0]], strict=True),
    *zip(SOURCED, [*SOURCED[1:], SOURCED[0]], strict=True),
    *((name, name) for name in TEXTS),
]


@pytest.mark.parametrize(("target", "draft"), DRAFTS)
@pytest.mark.parametrize("ahead", [1, 4])
def test_a_draft_changes_no_token(target: str, draft: str, ahead: int):
    """What was proposed in vain must be forgotten, on either side; each reads in its own way."""
    model, helper = (writing(name, 2, -2.0) for name in (target, draft))
    texts = sources_for(model, 4, 3)
    asked = [Sampling(limit=limit, temperature=0) for limit in (9, 1, 7, 12)]
    more = {"context": 40, "signs": signs_of(model)}
    plain = steps_of(DecodeBatch.begin(model, PROMPTS, asked, memory=read(model, texts), **more))
    if texts:
        more["draft_memory"] = read(helper, texts)
    drafted = Speculation.begin(
        model, helper, PROMPTS, asked, ahead=ahead, memory=read(model, texts), **more
    )
    assert steps_of(drafted) == plain
    if target == draft:
        assert drafted.acceptance == 1.0
    else:
        assert drafted.accepted < drafted.proposed


# --- in float32, a row beside others, and without what is kept ---------------------------------


@cache
def single(name: str) -> SequenceModule:
    return deepcopy(writing(name, 2, 0.0)).float()


def prompts() -> list[list[int]]:
    return [[BOS, *words(row * 5 % 13, row)] for row in range(ROWS)]


@pytest.mark.parametrize("name", TEXTS)
def test_a_row_alone_is_the_row_beside_32_others_and_the_one_that_is_worked_out_anew(name: str):
    module = single(name)
    texts = sources_for(module, ROWS, 5)
    asked = [wish(row) for row in range(ROWS)]
    found = together(module, prompts(), asked, texts)
    for row, (prompt, one) in enumerate(zip(prompts(), asked, strict=True)):
        source = texts and texts[row]
        if row % 3 == 0:
            assert found[row] == together(module, [prompt], [one], source and [source])[0]
            assert found[row] == written(module, prompt, one, source)
    assert len({len(ids) for ids in found}) > 3
    assert len({token for ids in found for token in ids}) > 3


@pytest.mark.parametrize("name", TEXTS)
def test_with_what_is_kept_a_token_is_as_probable_as_in_a_pass_over_the_whole(name: str):
    module = single(name)
    texts = sources_for(module, ROWS, 5)
    asked = [replace(wish(row), logprobs=0) for row in range(ROWS)]
    steps = begun(module, prompts(), asked, texts)
    for row, tokens in tokens_of(steps).items():
        text, source = [*prompts()[row], *(token.id for token in tokens)], texts and [texts[row]]
        with torch.no_grad():
            logprobs = module(torch.tensor([text[:-1]]), read(module, source))[0].log_softmax(-1)
        first = len(prompts()[row]) - 1
        wanted = [float(logprobs[first + i, token.id]) for i, token in enumerate(tokens)]
        assert [token.logprob for token in tokens] == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("name", TEXTS)
def test_a_search_alone_is_the_search_beside_32_others(name: str):
    module = single(name)
    texts = sources_for(module, ROWS, 5)
    limits = [3 + row * 5 % 13 for row in range(ROWS)]
    found = found_by(module, prompts(), limits, Beam(3, n_best=3), texts)
    for row in range(0, ROWS, 4):
        source = texts and [texts[row]]
        (alone,) = found_by(module, [prompts()[row]], [limits[row]], Beam(3, n_best=3), source)
        for one, other in zip(found[row].hypotheses, alone.hypotheses, strict=True):
            assert whole(one) == whole(other)
            assert one.worth == pytest.approx(other.worth, abs=1e-4)
