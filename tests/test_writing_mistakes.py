"""Mistakes from Python: which prompt, which argument, which file; and numbers of any kind."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import regard
from regard.decoding.search.speculative import Speculation
from regard.decoding.settings import Beam, Sampling
from regard.errors import RegardError
from regard.loading import Model
from regard.text.learning import learn

TEXT = "the cat sat on the mat. a dog ran under the cat, and straße! " * 3


def made(name: str) -> Model:
    """Weights drawn wide."""
    tokenizer = learn("char", [TEXT], 0)
    config = replace(regard.preset(name), vocabulary=len(tokenizer), context=48)
    module = regard.build(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() == 2:
                weight.copy_(0.25 * torch.randn(weight.shape, generator=generator))
    source = tokenizer if config.kind == "encoder-decoder" else None
    return Model(module, {}, tokenizer, source)


@pytest.fixture(scope="module")
def decoder() -> Model:
    return made("gpt2-tiny")


@pytest.fixture(scope="module")
def translator() -> Model:
    return made("marian-tiny")


def test_of_several_prompts_the_wrong_one_is_named(decoder, translator):
    long = "the cat " * 9
    cases = [
        (lambda: decoder.generate(["the"] * 5 + [long]), "prompt 6 of 6: the prompt has 73 tokens"),
        (lambda: decoder.generate(["a", long], beam=2), "prompt 2 of 2: the prompt has 73 tokens"),
        (lambda: decoder.generate([[5], [6, -1]]), "prompt 2 of 2: token id -1 does not exist"),
        (lambda: decoder.generate(long), "^the prompt has 73 tokens"),
        (lambda: translator.generate(["a", " "]), "source 2 of 2: the source is empty"),
        (lambda: translator.generate(["a", "b" * 60]), "source 2 of 2: a source of 61 tokens"),
    ]
    for call, words in cases:
        with pytest.raises(RegardError, match=words):
            call()


def test_a_source_is_the_same_with_blanks_around_it(translator):
    for blank in ("", " ", "\n\t"):
        with pytest.raises(RegardError, match="the source is empty"):
            translator.generate(blank)
    plain, padded = "the cat", " the cat\n"
    asked = {"max_tokens": 9, "temperature": 0.0}
    assert translator.generate(padded, **asked)[0].ids == translator.generate(plain, **asked)[0].ids
    scores = [translator.score("a dog", sources=source)[0].logprob for source in (plain, padded)]
    assert scores[0] == scores[1]


def test_a_text_is_whole_though_a_part_of_it_was_looked_at_before(decoder):
    asked = Sampling(limit=9, seed=3)
    (wanted,) = decoder.stream("the", asked).whole()
    for looked in (1, 4, 9, 20):
        stream = decoder.stream("the", asked)
        for _, _ in zip(range(looked), stream, strict=False):
            pass
        assert stream.whole() == [wanted]
        assert stream.whole() == [wanted]
    two = decoder.stream(["the", "a"], asked)
    next(iter(two))
    assert two.whole() == decoder.stream(["the", "a"], asked).whole()


@pytest.mark.parametrize("drafted", [False, True])
def test_what_was_kept_for_a_text_is_freed_at_its_end(decoder, drafted):
    stream = decoder.stream("the", Sampling(limit=9), draft=decoder if drafted else None)
    states = [stream.steps.writing.prefix.state, stream.steps.draft.state] if drafted else []
    states = states or [stream.steps.prefix.state]
    assert all(state.bytes for state in states)
    stream.whole()
    assert not any(state.bytes for state in states)


def test_numbers_may_be_numpys(decoder):
    plain = {"max_tokens": 8, "temperature": 0.5, "top_k": 5, "seed": 7, "banned": [9, 10]}
    same = {
        "max_tokens": np.int64(8),
        "temperature": np.float32(0.5),
        "top_k": np.int32(5),
        "seed": np.int64(7),
        "banned": np.array([9, 10]),
    }
    assert decoder.generate("the", **same) == decoder.generate("the", **plain)
    assert decoder.generate("the", beam=np.int64(2))[0] == decoder.generate("the", beam=2)[0]
    with pytest.raises(RegardError, match="top_k must be a whole number"):
        decoder.generate("the", top_k=True)


def test_a_draft_that_cannot_draft_is_called_the_draft(decoder, translator):
    words = r"the draft \(encoder-decoder\) cannot generate with this model: it translates"
    with pytest.raises(RegardError, match=words):
        decoder.generate("the", draft=translator)
    for ahead in (0, "4", True):
        with pytest.raises(RegardError, match=f"at least one token at a time, not {ahead!r}"):
            decoder.stream("the", draft=decoder, ahead=ahead)


def test_a_draft_that_was_asked_for_nothing_has_no_share(decoder):
    stream = decoder.stream("the", Sampling(limit=1), draft=decoder)
    stream.whole()
    assert stream.acceptance is None


def test_a_prompt_that_no_row_goes_on_from_may_be_the_longest(decoder):
    prompts, asked = [[1], [1, *[9] * 9]], [Sampling(limit=2, temperature=0.0)]
    steps = Speculation.begin(
        decoder.module, decoder.module, prompts, asked, context=30, copies=[0]
    )
    written = []
    while steps.open:
        written += [token.id for token in steps.step()]
    assert written == [t.id for t in decoder.generate("", max_tokens=2, temperature=0.0)[0].tokens]


@pytest.mark.parametrize("rows", [1, 6, 7, 13, 32])
def test_the_least_risky_translation_does_not_depend_on_how_many_are_drawn_together(
    translator, rows
):
    lines = ["the cat", "", "a dog ran", "sat", "on the mat."]
    asked = {"mbr": 6, "temperature": 0.8, "seed": 4}
    alone = [translator.translate(line, **asked)[0] for line in lines]
    together = translator.translate(lines, rows=rows, **asked)
    assert [(one.ids, one.score) for one in together] == [(one.ids, one.score) for one in alone]
    assert together[1].ids == []


def test_arguments_are_named_as_they_were_given(decoder, translator):
    cases = [
        (lambda: decoder.generate("a", max_tokens="9"), "max_tokens must be .* not '9'"),
        (lambda: decoder.generate("a", beam=2.5), "beam must be .* not 2.5"),
        (lambda: decoder.generate("a", beam=2, n=3), "3 best of 2 beams cannot be had; raise beam"),
        (lambda: translator.translate("a", max_tokens=-1), "max_tokens must be .* not -1"),
        (lambda: translator.translate("a", mbr="2"), "mbr must be .* not '2'"),
        (lambda: translator.translate("a", mbr=5000), "mbr must be .* 1 to 4,096, not 5000"),
        (lambda: translator.translate("a", beam=Beam(beams=0)), "beams must be"),
    ]
    for call, words in cases:
        with pytest.raises(RegardError, match=words):
            call()


# --- what a config.json says of a vocabulary ---------------------------------------------------


def told(decoder: Model, **ids: object) -> list[int]:
    """What a model without a tokenizer writes that likes its last token best."""
    with torch.no_grad():
        module = regard.build(replace(decoder.config, head_bias=True)).eval()
        module.load_state_dict(decoder.module.state_dict(), strict=False)
        module.head.bias[-1] = 99.0
    model = Model(module, {"eos_token_id": 2, "bos_token_id": 1, **ids})
    (drawn,) = model.generate([[1, 5]], max_tokens=4, temperature=0.0)
    (found,) = model.generate([[1, 5]], max_tokens=4, beam=2)
    assert drawn.ids[0] == found.ids[0]
    return drawn.ids


def test_padding_that_is_none_rules_nothing_out(decoder):
    last = decoder.config.vocabulary - 1
    assert told(decoder) == told(decoder, pad_token_id=-1) == [last] * 4
    assert told(decoder, pad_token_id=None) == [last] * 4
    assert last not in told(decoder, pad_token_id=last)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ({"pad_token_id": "x"}, "pad_token_id must be a token's number, 0 to .* not 'x'"),
        ({"pad_token_id": [1]}, r"pad_token_id must be a token's number, 0 to .* not \[1\]"),
        ({"bos_token_id": "x"}, "bos_token_id must be a token's number, 0 to .* not 'x'"),
        ({"bos_token_id": 500}, "bos_token_id must be a token's number, 0 to .* not 500"),
        ({"eos_token_id": 500}, "eos_token_id must be a token's number, 0 to .* not 500"),
        ({"eos_token_id": -1}, "eos_token_id must be a token's number, 0 to .* not -1"),
        ({"eos_token_id": [2, True]}, r"eos_token_id must be .* not \[2, True\]"),
        ({"eos_token_id": []}, "eos_token_id must not be an empty list"),
    ],
)
def test_ids_that_are_no_tokens_are_one_sentence_about_the_file(decoder, ids, words):
    with pytest.raises(RegardError, match=f"config.json: {words}"):
        told(decoder, **ids)


def test_a_folder_that_is_neither_a_run_nor_a_model_is_said_to_be_neither(tmp_path):
    with pytest.raises(RegardError, match=r"is no run .* and no Hugging Face folder"):
        regard.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "abacus"}))
    with pytest.raises(RegardError, match="abacus"):
        regard.load(tmp_path)
