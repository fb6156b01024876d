"""Filled gaps: `transformers`' BertForMaskedLM as the reference, bytes and blanks as they stand."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

from dataclasses import replace

import pytest
import torch
import transformers as hf

import regard
from regard import RegardError
from regard.decoding.gaps import filled
from regard.decoding.settings import TEXT
from regard.decoding.text_model import TextModel
from regard.models.construction import build
from regard.models.transformer.presets import preset
from regard.text.learning import learn
from regard.text.specials import BOS, EOS, MASK, SPECIALS, UNK

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

CORPUS = ["the cat sat on the mat and the dog sat on the cat", "née straße 猫 the end of the cat"]
SPECIAL = len(SPECIALS)


def speaker_of(kind, **changes) -> TextModel:
    tokenizer = learn(kind, CORPUS, 300 if kind == "bpe" else 0)
    config = replace(preset("bert-tiny"), vocabulary=len(tokenizer), **changes)
    return TextModel(build(config).eval(), TEXT, tokenizer)


def answering(speaker, *answers, weight=20.0) -> TextModel:
    """The same speaker, but gap i is surely filled by the i-th id."""
    logits = torch.zeros(len(answers), len(speaker.tokenizer))
    logits[range(len(answers)), list(answers)] = weight
    speaker.module.logits = lambda hidden: logits.clone()
    return speaker


@pytest.mark.parametrize("kind", ["bpe", "char", "word", "byte"])
@torch.no_grad()
def test_candidates_are_the_top_k_of_transformers(kind, tmp_path):
    tokenizer = learn(kind, CORPUS, 300 if kind == "bpe" else 0)
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 64, "hidden_size": 32}
    more = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    theirs = hf.BertForMaskedLM(hf.BertConfig(**sizes, **more, pad_token_id=0)).eval()
    torch.manual_seed(1)
    for name, tensor in theirs.named_parameters():
        norm = tensor.dim() == 1 and name.endswith("weight")
        tensor.normal_(1.0 if norm else 0.0, 0.2)
    theirs.save_pretrained(tmp_path)
    speaker = TextModel(regard.load(tmp_path).module, TEXT, tokenizer)
    found = filled(speaker, "the[mask] sat on[mask][mask] mat", top=4)
    parts = [tokenizer.encode(part).tolist() for part in ("the", " sat on", "", " mat")]
    ids = torch.tensor([[BOS, *parts[0], MASK, *parts[1], MASK, MASK, *parts[3], EOS]])
    probabilities = theirs(ids).logits[0][ids[0] == MASK].double().softmax(-1)  # (3, vocabulary)
    best = probabilities[:, SPECIAL:].topk(4, dim=-1)
    assert found.ids == tuple(map(tuple, (best.indices + SPECIAL).tolist()))
    for gap, expected in zip(found.gaps, best.values.tolist(), strict=True):
        assert [candidate.probability for candidate in gap] == pytest.approx(expected, rel=1e-4)
    fills = [tokenizer.decode_bytes([tokens[0]]) for tokens in found.ids]
    whole = b"the" + fills[0] + b" sat on" + fills[1] + fills[2] + b" mat"
    assert found.text == whole.decode("utf-8", "replace")


def test_three_spellings_are_the_same_gap():
    speaker = speaker_of("char")
    texts = [filled(speaker, f"a{gap}b {gap}") for gap in ("[mask]", "[MASK]", "<mask>")]
    assert texts[0] == texts[1] == texts[2]
    assert len(texts[0].gaps) == 2
    assert filled(speaker, "[Mask]a<mask>").text.startswith("[Mask]a")


def test_the_blank_before_a_gap_is_in_the_gap_where_tokens_begin_with_theirs():
    speaker = speaker_of("bpe")
    cat = speaker.tokenizer.encode(" cat").tolist()
    assert len(cat) == 1
    answering(speaker, *cat)
    for text in ("the [mask] sat", "the[mask] sat"):
        assert filled(speaker, text).text == "the cat sat"
    assert filled(speaker, "the [mask] sat").gaps[0][0].text == " cat"
    words = speaker_of("word")
    answering(words, *words.tokenizer.encode("cat").tolist())
    assert filled(words, "the [mask] sat").text == "the cat sat"


def test_a_character_may_be_filled_byte_by_byte():
    speaker = speaker_of("byte")
    answering(speaker, *speaker.tokenizer.encode("é").tolist())
    found = filled(speaker, "n<mask><mask>e")
    assert found.text == "née"
    assert [gap[0].text for gap in found.gaps] == ["⟨C3⟩", "⟨A9⟩"]
    assert filled(answering(speaker_of("byte"), SPECIAL + 0xC3), "n<mask>e").text == "n�e"


def test_bytes_that_are_no_utf8_stay_where_they_are():
    speaker = speaker_of("byte")
    answering(speaker, *speaker.tokenizer.encode("x").tolist())
    assert filled(speaker, "\udcff<mask>\ud800").text == "�x�"


def test_special_tokens_are_never_proposed_and_keep_their_share():
    speaker = speaker_of("word")
    count = len(speaker.tokenizer)
    (gap,) = filled(answering(speaker, UNK, weight=5.0), "<mask>", top=10_000).gaps
    assert len(gap) == count - SPECIAL
    share = torch.tensor(5.0).exp() / (torch.tensor(5.0).exp() + count - 1)
    other = (1 - share) / (count - 1)
    for candidate in gap:
        assert candidate.probability == pytest.approx(float(other), rel=1e-4)


def refusal(*arguments, **options) -> str:
    with pytest.raises(RegardError) as caught:
        filled(*arguments, **options)
    return str(caught.value)


def test_what_cannot_be_filled_is_one_sentence():
    speaker = speaker_of("char", context=16)
    assert "there is no gap" in refusal(speaker, "the cat")
    assert "there is no gap" in refusal(speaker, "")
    assert filled(speaker, "a" * 13 + "<mask>").text[:13] == "a" * 13
    assert "17 tokens; this model reads at most 16" in refusal(speaker, "a" * 14 + "<mask>")
    for top in (0, -1, 1.5, True):
        assert "top must be a whole number" in refusal(speaker, "<mask>", top=top)
    decoder = TextModel(build(replace(preset("gpt2-tiny"))).eval(), TEXT, speaker.tokenizer)
    assert "(decoder) cannot fill gaps" in refusal(decoder, "<mask>")
    assert "without a tokenizer" in refusal(TextModel(speaker.module, TEXT), "<mask>")
    assert "no output head" in refusal(speaker_of("char", head="none", head_bias=False), "<mask>")
    assert "NaN" in refusal(answering(speaker, 7, weight=torch.nan), "<mask>")
