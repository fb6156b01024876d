"""Several models as one, against the mean of their probabilities worked out by hand."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from twins import disliking, only_counted, writer

from regard.decoding.decode_batch import DecodeBatch
from regard.decoding.search.beam import search
from regard.decoding.search.ensemble import Ensemble
from regard.decoding.search.speculative import Speculation
from regard.decoding.settings import TARGET, TEXT, Beam, Sampling
from regard.decoding.text_model import TextModel
from regard.errors import RegardError
from regard.models.construction import build
from regard.models.protocol import SequenceModel
from regard.models.transformer.model import Transformer
from regard.models.transformer.presets import preset
from regard.text.specials import BOS, EOS

VOCABULARY = 9
WORDS = [token for token in range(VOCABULARY) if token not in TARGET.never]


def model(seed: int, name: str = "marian-tiny", **changes) -> Transformer:
    """Weights drawn wide, so that no two answers are nearly alike; in float64."""
    settings = {"vocabulary": VOCABULARY, "context": 16, "layers": 1, "width": 16, **changes}
    module = build(replace(preset(name), **settings)).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() == 2:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.4)
    return module


def members(name: str = "marian-tiny") -> list[Transformer]:
    """Of different sizes and contexts."""
    return [model(0, name), model(1, name, layers=2, heads=2), model(2, name, width=8, context=12)]


SOURCE = torch.tensor([[5, 6, 7, 8], [8, 5, 0, 0]])
LENGTHS = torch.tensor([4, 2])
TOKENS = torch.tensor([[BOS, 5, 8, 6, 5], [BOS, 7, 7, 8, 6]])


@torch.no_grad()
def by_hand(parts: list[Transformer], tokens: Tensor, source: Tensor | None = None) -> Tensor:
    """The log of the mean probability, (rows, positions, vocabulary); everything anew."""
    shares = []
    for part in parts:
        memory = None if source is None else part.encode(source)
        shares.append(part(tokens, memory).softmax(-1))
    return torch.log(sum(shares) / len(shares))


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny", "bert-tiny"])
def test_without_a_state_it_is_the_log_of_the_mean_probability(name):
    parts = members(name)
    with torch.no_grad():
        logits = Ensemble(parts)(TOKENS)
    torch.testing.assert_close(logits, by_hand(parts, TOKENS))
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(2, 5, dtype=torch.float64))


@torch.no_grad()
def test_with_a_memory_padding_and_only_the_last_position():
    parts = members()
    ensemble = Ensemble(parts)
    memory = ensemble.encode(SOURCE, LENGTHS)
    assert memory.rows == 2
    logits = ensemble(TOKENS, memory, lengths=[5, 3])
    for row, (words, real) in enumerate([(4, 5), (2, 3)]):
        alone = by_hand(parts, TOKENS[row : row + 1, :real], SOURCE[row : row + 1, :words])
        torch.testing.assert_close(logits[row : row + 1, :real], alone)
    last = ensemble(TOKENS, memory, lengths=[5, 3], last=True)
    torch.testing.assert_close(last[:, 0], torch.stack([logits[0, 4], logits[1, 2]]))


@torch.no_grad()
def test_with_a_state_step_by_step_undone_and_reordered():
    parts = members()
    ensemble = Ensemble(parts)
    state = ensemble.start(2, 8)
    whole = ensemble(TOKENS, ensemble.encode(SOURCE, LENGTHS))
    memory = ensemble.encode(SOURCE, LENGTHS)
    first = ensemble(TOKENS[:, :2], memory, state)
    torch.testing.assert_close(first, whole[:, :2])
    ensemble(torch.tensor([[6, 8], [8, 5]]), None, state)  # of which one row keeps one
    state.rollback([2, 1])
    ragged = ensemble(torch.tensor([[8, 6], [6, 0]]), None, state, lengths=[2, 1])
    torch.testing.assert_close(ragged[0], whole[0, 2:4])
    again = torch.tensor([[BOS, 7, 8, 6]])
    torch.testing.assert_close(ragged[1:, :1], by_hand(parts, again, SOURCE[1:, :2])[:, 3:])
    state.reorder([1, 0, 0])
    assert state.rows == 3
    after = ensemble(torch.tensor([[5], [5], [7]]), None, state)
    longer = torch.tensor([[BOS, 7, 8, 6, 5]])
    torch.testing.assert_close(after[:1], by_hand(parts, longer, SOURCE[1:, :2])[:, 4:])
    torch.testing.assert_close(after[1], whole[0, 4:])
    other = torch.tensor([[BOS, 5, 8, 6, 7]])
    torch.testing.assert_close(after[2:], by_hand(parts, other, SOURCE[:1])[:, 4:])
    state.free()
    assert [part.rows for part in state.parts] == [0, 0, 0]


@torch.no_grad()
def test_what_was_seen_is_the_mean_over_members_upper_layers_and_heads():
    parts = members()
    ensemble = Ensemble(parts)
    state = ensemble.start(2, 8, return_attention=True)
    ensemble(TOKENS, ensemble.encode(SOURCE, LENGTHS), state)
    looks = []
    for part in parts:
        alone = part.start(2, 8, return_attention=True)
        part(TOKENS, part.encode(SOURCE, LENGTHS), alone)
        looks.append(alone.attention[:, part.config.layers // 2 :].mean((1, 2)))
    assert state.attention.shape == (2, 1, 1, 5, 4)
    torch.testing.assert_close(state.attention[:, 0, 0], sum(looks) / 3)
    torch.testing.assert_close(state.attention.sum(-1), torch.ones(2, 1, 1, 5, dtype=torch.float64))
    blind = ensemble.start(2, 8)
    ensemble(TOKENS, ensemble.encode(SOURCE, LENGTHS), blind)
    assert blind.attention is None


def test_an_ensemble_of_one_writes_what_the_model_writes():
    alone = model(1)
    ensemble = Ensemble([alone])
    with torch.no_grad():
        logits = ensemble(TOKENS, ensemble.encode(SOURCE, LENGTHS))
        torch.testing.assert_close(
            logits, alone(TOKENS, alone.encode(SOURCE, LENGTHS)).log_softmax(-1)
        )
    assert isinstance(ensemble, SequenceModel)
    assert ensemble.config == alone.config
    found = [
        search(one, [[BOS]] * 2, [6, 6], Beam(beams=3), memory=one.encode(SOURCE, LENGTHS))
        for one in (alone, ensemble)
    ]
    for mine, its in zip(*found, strict=True):
        assert mine.hypotheses[0].ids == its.hypotheses[0].ids
        assert mine.hypotheses[0].logprob == pytest.approx(its.hypotheses[0].logprob)


def test_a_wide_beam_finds_the_best_of_all_texts_by_the_mean():
    parts = members()
    ensemble = Ensemble(parts)
    beam = Beam(beams=64, coverage_penalty=0.0, attention=True)
    memory = ensemble.encode(SOURCE, LENGTHS)
    found = search(ensemble, [[BOS]] * 2, [3, 3], beam, memory=memory)
    for row, words in enumerate((4, 2)):
        worths = {}
        source = SOURCE[row : row + 1, :words]
        for text in itertools.product(WORDS, repeat=3):
            scores = by_hand(parts, torch.tensor([[BOS, *text[:-1]]]), source)[0]
            end = text.index(EOS) + 1 if EOS in text else 3
            logprob = sum(float(scores[i, token]) for i, token in enumerate(text[:end]))
            worths[tuple(token for token in text[:end] if token != EOS)] = logprob / end
        best = found[row].hypotheses[0]
        assert tuple(best.ids) == max(worths, key=lambda text: worths[text])
        assert best.worth == pytest.approx(worths[tuple(best.ids)])
        assert best.attention.shape == (len(best.ids) + best.ended, 4)
        torch.testing.assert_close(
            best.attention.sum(-1), torch.ones(len(best.attention), dtype=torch.float64)
        )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_writing_with_it_draws_from_the_mean(temperature):
    parts = members("gpt2-tiny")
    ensemble = Ensemble(parts)
    asked = [
        Sampling(limit=20, temperature=temperature, seed=row, banned=(EOS, row), logprobs=0)
        for row in range(6)
    ]
    prompts = [[BOS, *[5 + row] * row] for row in range(3)] * 2
    writing = DecodeBatch.begin(ensemble, prompts, asked, context=ensemble.config.context)
    texts = [list(prompt) for prompt in prompts]
    dice = [np.random.default_rng(row) for row in range(6)]
    while writing.open:
        for token in writing.step():
            scores = by_hand(parts, torch.tensor([texts[token.row]]))[0, -1]
            assert token.logprob == pytest.approx(float(scores[token.id]))
            allowed = [word for word in range(5, VOCABULARY) if word != token.row]
            shares = scores[allowed].exp().numpy()
            place = int(shares.argmax())
            if temperature:
                place = int((shares.cumsum() / shares.sum() <= dice[token.row].random()).sum())
            assert token.id == allowed[place]
            texts[token.row].append(token.id)
    # Until the smallest context is full; the last token need not be read.
    assert [len(text) for text in texts] == [13] * 6


def test_it_has_a_draft_and_is_one():
    parts = members("gpt2-tiny")
    ensemble = Ensemble(parts)
    asked = [Sampling(limit=20, temperature=0)] * 2
    given = {"prompts": [[BOS], [BOS, 6, 7]], "asked": asked, "context": 12}

    def ids(steps):
        found = [[], []]
        while steps.open:
            for token in steps.step():
                found[token.row].append(token.id)
        return found

    for target, draft in ((ensemble, parts[0]), (parts[0], ensemble)):
        steps = Speculation.begin(target, draft, **given)
        assert ids(steps) == ids(DecodeBatch.begin(target, **given))
        assert 0 < steps.accepted < steps.proposed


def test_a_speaker_can_be_made_of_it():
    ensemble = Ensemble(members())
    speaker = TextModel(ensemble, TARGET)  # type: ignore[arg-type]
    assert (speaker.context, speaker.reads) == (12, True)
    assert speaker.device == torch.device("cpu")
    memory = speaker.encode([[5, 6, 7, EOS], [8, EOS]])
    assert len(memory.parts) == 3


@torch.no_grad()
def test_halves_are_summed_in_full_precision():
    parts = members("gpt2-tiny")
    whole = by_hand(parts, TOKENS).float()
    halves = Ensemble([part.bfloat16() for part in parts])(TOKENS)
    assert halves.dtype == torch.float32
    torch.testing.assert_close(halves, whole, atol=0.1, rtol=0.1)


def test_mistakes_are_one_sentence():
    with pytest.raises(RegardError, match="at least one model"):
        Ensemble([])
    with pytest.raises(RegardError, match="the same kind, not decoder and encoder-decoder"):
        Ensemble([model(0), model(0, "gpt2-tiny")])
    with pytest.raises(RegardError, match="the same vocabulary, not 8 and 9"):
        Ensemble([model(0), model(0, vocabulary=8)])
    with pytest.raises(RegardError, match="the same source vocabulary, not 7 and 9"):
        Ensemble([model(0), model(0, source_vocabulary=7)])
    one, two = Ensemble([model(0), model(1)]), model(0)
    memory = one.encode(SOURCE)
    with pytest.raises(RegardError, match="what this ensemble's `encode` gave"):
        one(TOKENS, two.encode(SOURCE))
    with pytest.raises(RegardError, match="what this ensemble's `start` gave"):
        one(TOKENS, memory, two.start(2, 8))
    with pytest.raises(RegardError, match="what this ensemble's `encode` gave"):
        Ensemble([model(0)])(TOKENS, memory)


def test_a_member_that_expects_nothing_leaves_it_to_the_others():
    ngram = only_counted([[5, 6, 7, 8, 9], [5, 6, 5, 6, 9]])
    other = writer("gpt2-tiny", 1)
    prompt = [BOS, 9, 9]
    (alone,) = search(other, [prompt], [1], Beam(2, n_best=2), signs=TEXT)
    (both,) = search(Ensemble([ngram, other]), [prompt], [1], Beam(2, n_best=2), signs=TEXT)
    assert [one.ids for one in both.hypotheses] == [one.ids for one in alone.hypotheses]
    with pytest.raises(RegardError, match="gives no probability to any token"):
        search(Ensemble([ngram, ngram]), [prompt], [1], Beam(2))
    damaged = Ensemble([ngram, disliking(other, 7, torch.nan)])
    with pytest.raises(RegardError, match="its weights are damaged"):
        search(damaged, [prompt], [1], Beam(2))
