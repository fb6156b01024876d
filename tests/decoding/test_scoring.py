"""Scores of texts: `transformers`, sums over all texts, and one text at a time as references."""

import math
import os
from dataclasses import replace
from itertools import product

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import transformers as hf

import regard
from regard import RegardError
from regard.decoding import scoring
from regard.decoding.scoring import Score, scored
from regard.decoding.settings import TARGET, TEXT, SpecialTokens
from regard.decoding.text_model import TextModel
from regard.models.construction import build
from regard.models.transformer.presets import preset
from regard.text.learning import learn
from regard.text.specials import BOS, EOS, UNK

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

TINY = {"layers": 2, "width": 16, "heads": 2, "hidden": 32}
SENTENCES = ["the cat sat on the mat", "a dog", "", "the dog sat", "the the the cat a on"]


@torch.no_grad()
def wide(model):
    """Every weight drawn wide, so that no part of a pass is negligible."""
    torch.manual_seed(1)
    for name, tensor in model.named_parameters():
        norm = tensor.dim() == 1 and name.endswith("weight")
        if tensor.requires_grad:  # which sinusoids do not
            tensor.normal_(1.0 if norm else 0.0, 0.25)
    return model.eval()


def ours(theirs, folder) -> torch.nn.Module:
    theirs.save_pretrained(folder)
    return regard.load(folder).module


def small(name="gpt2-tiny", signs=TEXT, tokenizer=None, **changes) -> TextModel:
    config = replace(preset(name), **TINY, **({"vocabulary": len(tokenizer)} if tokenizer else {}))
    module = wide(build(replace(config, **changes)).double())
    return TextModel(module, signs, tokenizer, tokenizer)


@pytest.fixture(scope="module")
def letters() -> TextModel:
    return small(tokenizer=learn("char", SENTENCES))


@pytest.fixture(scope="module")
def translator() -> TextModel:
    return small("t5-tiny", TARGET, learn("word", SENTENCES), head_width=8)


def rows(seed, *lengths, first=3, known=61):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(first, known, (n,), generator=generator).tolist() for n in lengths]


def gathered(logits, ids):
    """The log-probability of each id at its position, of logits (1, positions, vocabulary)."""
    return [float(row.log_softmax(-1)[i]) for row, i in zip(logits[0].double(), ids, strict=True)]


# Against transformers


@torch.no_grad()
def test_a_gpt2_gives_every_token_the_log_probability_that_transformers_gives_it(tmp_path):
    sizes = {"vocab_size": 61, "n_positions": 24, "n_embd": 32, "n_layer": 2, "n_head": 4}
    theirs = wide(hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, bos_token_id=2, eos_token_id=1)))
    speaker = TextModel(ours(theirs, tmp_path), SpecialTokens(begin=2, ends=(1,), never=(0, 2)))
    texts = rows(0, 5, 0, 23, 1, 12)  # 23: the end is the 24th, and need not be read
    for text, score in zip(texts, scored(speaker, texts, rows=3), strict=True):
        expected = gathered(theirs(torch.tensor([[2, *text]])).logits, [*text, 1])
        assert score.logprobs == pytest.approx(expected, abs=2e-5)
        assert score.logprob == pytest.approx(sum(expected), abs=2e-4)
        assert score.ids == (*text, 1)
        assert score.tokens == len(text) + 1


@torch.no_grad()
def test_a_marian_gives_every_token_the_log_probability_that_transformers_gives_it(tmp_path):
    sizes = {"vocab_size": 61, "max_position_embeddings": 32, "d_model": 32}
    layers = {f"{side}_layers": 2 for side in ("encoder", "decoder")}
    heads = {f"{side}_attention_heads": 4 for side in ("encoder", "decoder")}
    wides = {f"{side}_ffn_dim": 64 for side in ("encoder", "decoder")}
    tokens = {"pad_token_id": 1, "eos_token_id": 0, "decoder_start_token_id": 1}
    theirs = hf.MarianMTModel(hf.MarianConfig(**sizes, **layers, **heads, **wides, **tokens))
    for stack in (theirs.model.encoder, theirs.model.decoder):
        stack.embed_tokens.weight = theirs.model.shared.weight
    theirs = wide(theirs)
    speaker = TextModel(ours(theirs, tmp_path), SpecialTokens(begin=1, ends=(0,), never=(1,)))
    texts, sources = rows(0, 5, 0, 20, 1, 12), rows(1, 2, 9, 3, 20, 1)
    found = scored(speaker, texts, sources=sources, rows=3)
    for text, source, score in zip(texts, sources, found, strict=True):
        answer = theirs(torch.tensor([[*source, 0]]), decoder_input_ids=torch.tensor([[1, *text]]))
        assert score.logprobs == pytest.approx(gathered(answer.logits, [*text, 0]), abs=2e-5)


# Against sums and single steps


def test_all_texts_up_to_a_length_and_all_longer_beginnings_have_probability_1():
    speaker = small(vocabulary=5, context=5)
    others = [token for token in range(5) if token != EOS]
    texts = [text for length in range(4) for text in product(others, repeat=length)]
    whole = math.fsum(math.exp(score.logprob) for score in scored(speaker, texts))
    longer = scored(speaker, list(product(others, repeat=4)))
    unfinished = math.fsum(math.exp(sum(score.logprobs[:-1])) for score in longer)
    assert whole < 1
    assert whole + unfinished == pytest.approx(1, abs=1e-12)


@torch.no_grad()
def test_a_target_scores_as_when_it_is_written_token_by_token_with_a_state(translator):
    source, text = "the cat sat", "a dog on the mat"
    (score,) = scored(translator, [text], sources=[source])
    read = [*translator.tokenizer.encode(source).tolist(), EOS]
    memory = translator.module.encode(torch.tensor([read]))
    state = translator.module.start(1, 20)
    before = BOS
    for token, logprob in zip(score.ids, score.logprobs, strict=True):
        logits = translator.module(torch.tensor([[before]]), memory, state)[0, -1]
        assert logprob == pytest.approx(float(logits.log_softmax(-1)[token]), abs=1e-12)
        before = token
    assert score.ids == (*translator.tokenizer.encode(text).tolist(), EOS)


@pytest.mark.parametrize("together", [1, 2, 3, 50])
def test_scores_are_those_of_each_text_alone_in_the_order_given(letters, translator, together):
    for speaker in (letters, translator):
        sources = {"sources": [f"cat {text}" for text in SENTENCES]} if speaker.reads else {}
        found = scored(speaker, SENTENCES, **sources, rows=together)
        for index, text in enumerate(SENTENCES):
            one = {"sources": [f"cat {text}"]} if speaker.reads else {}
            (alone,) = scored(speaker, [text], **one)
            assert found[index].ids == alone.ids
            assert found[index].logprobs == pytest.approx(alone.logprobs, abs=1e-12)


def test_each_side_is_read_by_its_own_tokenizer():
    letters, words = learn("char", SENTENCES), learn("word", SENTENCES)
    speaker = small("marian-tiny", TARGET, vocabulary=len(words), source_vocabulary=len(letters))
    speaker = replace(speaker, tokenizer=words, source_tokenizer=letters)
    (found,) = scored(speaker, ["the cat"], sources=["a dog"])
    assert len(found.ids) == 3
    ids = words.encode("the cat").tolist()
    assert [found] == scored(speaker, [ids], sources=[letters.encode("a dog").tolist()])


def test_a_source_counts(translator):
    one, other = scored(translator, ["the cat"] * 2, sources=["a dog", "the mat"])
    assert abs(one.logprob - other.logprob) > 1e-3


def test_logits_of_few_tokens_are_there_at_once(letters, monkeypatch):
    expected = scored(letters, SENTENCES)
    logits, sizes = letters.module.logits, []
    monkeypatch.setattr(scoring, "LOGITS", 3 * letters.module.config.vocabulary + 1)
    monkeypatch.setattr(letters.module, "logits", lambda x: sizes.append(len(x)) or logits(x))
    found = scored(letters, SENTENCES)
    assert max(sizes) == 3
    assert sum(sizes) == sum(score.tokens for score in found)  # no padding is worked out
    for one, other in zip(found, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-12)


# What a score says


def test_ids_score_as_their_text_and_an_end_that_is_there_is_no_second_one(letters):
    ids = letters.tokenizer.encode("the cat").tolist()
    text, plain, ended = scored(letters, ["the cat", ids, [*ids, EOS]])
    assert text == plain == ended


def test_an_empty_text_is_its_end(letters):
    (score,) = scored(letters, [""])
    assert (score.ids, score.tokens) == ((EOS,), 1)
    assert score.logprob == score.logprobs[0] < 0
    assert scored(letters, []) == []


def test_unknown_words_are_counted():
    speaker = small(tokenizer=learn("word", SENTENCES))
    one, other = scored(speaker, ["the zebra sat zebra", "the cat"])
    assert (one.unknown, other.unknown) == (2, 0)
    assert one.ids.count(UNK) == 2


def test_figures_follow_from_the_log_probability():
    score = Score(-6.0, 3, (-1.0, -2.0, -3.0), (5, 6, 2))
    assert score.per_token == -2
    assert score.perplexity == pytest.approx(math.e**2)
    assert Score(-1e6, 1, (-1e6,), (2,)).perplexity == math.inf


# Mistakes


def refusal(*arguments, **options) -> str:
    with pytest.raises(RegardError) as caught:
        scored(*arguments, **options)
    return str(caught.value)


def test_what_cannot_be_scored_is_one_sentence(letters, translator):
    encoder = small("bert-tiny", tokenizer=letters.tokenizer)
    assert "(encoder) cannot score texts" in refusal(encoder, ["a"])
    assert "give a source for each text" in refusal(translator, ["a"])
    assert "reads no sources" in refusal(letters, ["a"], sources=["a"])
    assert "each of 2 texts, not 1" in refusal(translator, ["a", "a"], sources=["a"])
    assert "each of 2 texts, not 1" in refusal(translator, ["a", "a"], sources="aa")
    assert "not one text" in refusal(letters, "the cat")
    assert "at least one row" in refusal(letters, ["a"], rows=0)
    assert "text 2: token id 999 does not exist" in refusal(letters, ["a", [999]])
    assert "source 2: the source is empty" in refusal(translator, ["a"] * 2, sources=["a", ""])
    bare = TextModel(letters.module, TEXT)
    assert "without a tokenizer" in refusal(bare, ["a"])
    assert scored(bare, [[5, 6]])[0].unknown == 0


def test_texts_too_long_are_named_all_at_once(letters):
    context = letters.context
    fits, long = "a" * (context - 1), "a" * context
    assert scored(letters, [fits])[0].tokens == context
    told = refusal(letters, ["a", long, fits, long])
    for number in (2, 4):
        assert f"text {number} has {context + 1} tokens; this model writes at most" in told
    assert "text 3" not in told


def test_a_damaged_model_is_told():
    speaker = small(vocabulary=9)
    speaker.module.embed.tokens.weight.data[7, 0] = torch.nan
    assert "NaN" in refusal(speaker, [[5]])
