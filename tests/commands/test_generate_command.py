"""`regard generate`: what a run writes is what its model says, character by character."""

import io
import sys
from pathlib import Path

import pytest
import torch
from command_line import call, mistake
from hypothesis import given
from hypothesis import strategies as st

from regard.commands.generate import _print, characters, filled, follow
from regard.data.pairs import Pair, encode_pairs
from regard.decoding.sampling import NEVER
from regard.text.learning import learn
from regard.text.specials import BOS, EOS, MASK, SPECIALS
from regard.training.evaluation import translations
from regard.training.runs import open_run


@torch.inference_mode()
def greedy(folder: Path, prompt: str, limit: int) -> list[int]:
    """The most probable tokens, by whole forwards without a state."""
    run = open_run(folder)
    ids = [BOS, *run.tokenizer.encode(prompt).tolist()]
    start = len(ids)
    while len(ids) < start + limit:
        logits = run.module(torch.tensor([ids]))[0, -1]
        logits[list(NEVER)] = -torch.inf
        if int(logits.argmax()) == EOS:
            break
        ids.append(int(logits.argmax()))
    return ids[start:]


@pytest.mark.parametrize("prompt", ["the cat", ""])
def test_temperature_0_writes_the_most_probable_tokens(decoder, prompt):
    said = call("generate", decoder, prompt, "--temperature", 0, "--tokens", 9)
    expected = open_run(decoder).tokenizer.decode(greedy(decoder, prompt, 9))
    assert said == (0, f"{prompt}{expected}\n", "")


def test_no_prompt_writes_from_the_start_and_the_seed_decides(decoder):
    first = call("generate", decoder, "--tokens", 20)
    assert first.code == 0
    assert first == call("generate", decoder, "", "--tokens", 20)
    assert first != call("generate", decoder, "--tokens", 20, "--seed", 1)


def test_standard_input_is_a_prompt_without_its_last_newline(decoder):
    options = ("--temperature", 0, "--tokens", 5)
    assert call("generate", decoder, "-", *options, stdin=b"the cat\n") == call(
        "generate", decoder, "the cat", *options
    )


def test_bytes_that_are_no_utf8_are_read_and_shown_as_replaced(decoder):
    said = call("generate", decoder, "-", "--tokens", 3, stdin=b"\xff\xfethe")
    assert said.code == 0
    assert said.out.startswith("��the")


def test_a_prompt_longer_than_the_context_is_shown_whole_with_a_note(decoder, data):
    prompt = (data / "notes.txt").read_text(encoding="utf-8")
    said = call("generate", decoder, prompt, "--tokens", 3)
    assert said.code == 0
    assert said.out.startswith(prompt)
    assert "the model goes on from the last 29" in said.err
    assert open_run(decoder).config.context == 32


def test_an_unknown_word_is_noted(words):
    assert "1 of the prompt's 2 tokens are unknown" in call("generate", words, "the zebra").err


def test_words_are_joined_to_the_prompt_as_they_would_be_within_a_text(words):
    for prompt in ("the cat", "the cat ", "the zebra", "the cat\n", "“"):
        said = call("generate", words, prompt, "--temperature", 0, "--tokens", 6)
        ids = greedy(words, prompt, 6)
        if prompt == "the cat":
            tokenizer = open_run(words).tokenizer
            whole = tokenizer.decode([*tokenizer.encode(prompt).tolist(), *ids])
            assert said.out == f"{whole}\n"
        assert said.out.startswith(prompt)
        assert "  " not in said.out


@given(st.text(), st.lists(st.integers(1, 4)))
def test_no_character_is_ever_printed_half(text, sizes):
    raw, parts = text.encode("utf-8", "replace"), []
    for size in sizes:
        parts.append(raw[:size])
        raw = raw[size:]
    shown = list(characters([*parts, raw]))
    assert "".join(shown) == text.encode("utf-8", "replace").decode()


@given(st.lists(st.binary(max_size=5)))
def test_any_bytes_become_the_text_that_decoding_them_at_once_gives(parts):
    assert "".join(characters(parts)) == b"".join(parts).decode("utf-8", "replace")


SIGNS = ("the", "a", "cat", ".", ",", "(", ")", "“", "”", "'s", "\n")


@given(st.lists(st.sampled_from(SIGNS), min_size=2), st.data())
def test_tokens_that_follow_are_joined_as_in_the_whole_text(pieces, drawn):
    text = " ".join(pieces)
    for kind in ("word", "char", "byte"):
        tokenizer = learn(kind, [f"{text} cat"], 0)
        ids = tokenizer.encode(text).tolist()
        cut = drawn.draw(st.integers(1, len(ids)))
        prompt = tokenizer.decode_bytes(ids[:cut])
        behind = b"".join(follow(tokenizer, ids[:cut], "x", ids[cut:]))
        assert prompt + behind == tokenizer.decode_bytes(ids)


def test_a_terminal_is_not_sent_what_it_would_obey(monkeypatch):
    for terminal in (True, False):
        out = io.StringIO()
        out.isatty = lambda terminal=terminal: terminal
        monkeypatch.setattr(sys, "stdout", out)
        _print("a\x1b[2J\tb\n")
        assert ("\x1b" in out.getvalue()) == (not terminal)
        assert "\tb\n" in out.getvalue()


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--temperature -1", "--temperature must not be negative"),
        ("--temperature nan", "--temperature must not be negative"),
        ("--temperature inf", "--temperature must be finite"),
        ("--top -1", "--top must not be negative"),
        ("--tokens -1", "--tokens must not be negative"),
        ("--seed -1", "--seed must not be negative"),
        (f"--seed {1 << 63}", "--seed must be below"),
        ("--beam 0", "--beam must be at least 1"),
        ("--device abacus", "abacus"),
    ],
)
def test_a_wrong_option_is_one_sentence_and_nothing_is_printed(decoder, option, words):
    said = call("generate", decoder, "the cat", *option.split())
    assert words in mistake(said)
    assert said.out == ""


def test_what_is_no_run_is_said():
    assert "is no run" in mistake(call("generate", "nowhere", "the"))


# Gaps


@torch.inference_mode()
def test_each_gap_holds_the_most_probable_token_and_the_rest_is_untouched(encoder):
    run = open_run(encoder)
    gap = SPECIALS[MASK]
    said = call("generate", encoder, f"the{gap} sat on{gap}{gap} qq")
    parts = [run.tokenizer.encode(text).tolist() for text in ("the", " sat on", "", " qq")]
    ids = [BOS, *parts[0], MASK, *parts[1], MASK, MASK, *parts[3], EOS]
    logits = run.module(torch.tensor([ids]))[0]
    logits[:, : len(SPECIALS)] = -torch.inf
    best = [int(logits[i].argmax()) for i, token in enumerate(ids) if token == MASK]
    fills = [run.tokenizer.decode_bytes([token]) for token in best]
    expected = b"the" + fills[0] + b" sat on" + fills[1] + fills[2] + b" qq\n"
    assert said == (0, expected.decode("utf-8", "replace"), "")


def test_the_blank_before_a_gap_belongs_to_it(encoder):
    run = open_run(encoder)
    assert filled(run, "the <mask> sat") == filled(run, "the<mask> sat")


def test_a_text_without_a_gap_and_one_too_long_are_mistakes(encoder):
    assert "write <mask> where one is" in mistake(call("generate", encoder, "the cat"))
    assert "write <mask> where one is" in mistake(call("generate", encoder, ""))
    assert "reads at most" in mistake(call("generate", encoder, "the <mask> " * 500))


# Translations


@pytest.mark.parametrize("kind", ["translator", "separate"])
def test_lines_are_translated_as_evaluation_translates_them(request, data, kind):
    folder = request.getfixturevalue(kind)
    run = open_run(folder)
    lines = (data / "source2").read_text(encoding="utf-8").split("\n")[:3]
    pairs = encode_pairs([Pair(line, "") for line in lines], run.source_tokenizer, run.tokenizer)
    for beams in (1, 4):
        expected = translations(run.module, pairs, run.tokenizer, beams=beams)
        text = "\n\n".join(lines).encode()
        said = call("generate", folder, "-", "--beam", beams, stdin=text)
        assert said.out == "\n\n".join(expected) + "\n"


def test_sides_with_vocabularies_of_their_own_are_read_by_their_own(separate):
    run = open_run(separate)
    assert run.source_tokenizer is not run.tokenizer
    assert call("generate", separate, "the cat").code == 0


def test_a_line_too_long_is_named_before_anything_is_translated(translator):
    text = ("the cat\n" + "dog " * 500 + "\nthe dog").encode()
    said = call("generate", translator, "-", stdin=text)
    assert "line 2 has 501 tokens" in mistake(said)
    assert said.out == ""


@pytest.mark.parametrize("text", ["", " \n "])
def test_nothing_to_translate_is_a_mistake(translator, text):
    assert "nothing to translate" in mistake(call("generate", translator, text))
