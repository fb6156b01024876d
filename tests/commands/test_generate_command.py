"""`regard generate`: what a run writes is what its model says, character by character."""

import io
import json
import re
import sys
from pathlib import Path

import pytest
import torch
from command_line import call, mistake

from regard.commands import generate
from regard.commands.printing import put
from regard.decoding.settings import TEXT
from regard.loading import load
from regard.runs.stored_run import open_run
from regard.text.specials import BOS, EOS


@torch.inference_mode()
def greedy(folder: Path, prompt: str, limit: int) -> list[int]:
    """The most probable tokens, by whole forwards without a state."""
    run = open_run(folder)
    ids = [BOS, *run.tokenizer.encode(prompt).tolist()]
    start = len(ids)
    while len(ids) < start + limit:
        logits = run.module(torch.tensor([ids]))[0, -1]
        logits[list(TEXT.never)] = -torch.inf
        if int(logits.argmax()) == EOS:
            break
        ids.append(int(logits.argmax()))
    return ids[start:]


@pytest.mark.parametrize("prompt", ["the cat", ""])
def test_temperature_0_writes_the_most_probable_tokens(decoder, prompt):
    said = call("generate", decoder, prompt, "--temperature", 0, "--max-tokens", 9)
    expected = open_run(decoder).tokenizer.decode(greedy(decoder, prompt, 9))
    assert said == (0, f"{prompt}{expected}\n", "")


def test_an_empty_prompt_writes_from_the_start_and_the_seed_decides(decoder):
    first = call("generate", decoder, "", "--max-tokens", 20)
    assert first.code == 0
    assert first == call("generate", decoder, "--max-tokens", 20, stdin=b"\n")
    assert first != call("generate", decoder, "", "--max-tokens", 20, "--seed", 1)


def test_standard_input_is_a_prompt_without_its_last_newline(decoder):
    options = ("--temperature", 0, "--max-tokens", 5)
    expected = call("generate", decoder, "the cat", *options)
    assert call("generate", decoder, "-", *options, stdin=b"the cat\n") == expected
    assert call("generate", decoder, *options, stdin=b"the cat\n") == expected


def test_bytes_that_are_no_utf8_are_read_and_shown_as_replaced(decoder):
    said = call("generate", decoder, "-", "--max-tokens", 3, stdin=b"\xff\xc0the")
    assert said.code == 0
    assert said.out.startswith("��the")


def test_a_prompt_longer_than_the_context_is_one_sentence(decoder, data):
    prompt = (data / "notes.txt").read_text(encoding="utf-8")
    said = call("generate", decoder, prompt, "--max-tokens", 3)
    assert "but the model's context holds 32; shorten it" in mistake(said)
    assert open_run(decoder).config.context == 32


def test_where_the_context_ends_writing_ends_and_that_is_said(decoder):
    said = call("generate", decoder, "the cat", "--seed", 2, "--json", "--max-tokens", 500)
    found = json.loads(said.out)
    prompt = len(open_run(decoder).tokenizer.encode("the cat")) + 1
    assert found["end"] == "room"
    assert prompt + len(found["ids"]) - 1 == 32
    said = call("generate", decoder, "the cat", "--seed", 2, "--max-tokens", 500)
    assert "context is full" in said.err


def test_an_unknown_word_is_noted(words):
    assert "1 of the prompt's 2 tokens are unknown" in call("generate", words, "the zebra").err


def test_words_are_joined_to_the_prompt_as_they_would_be_within_a_text(words):
    for prompt in ("the cat", "the cat ", "the zebra", "the cat\n", "“"):
        said = call("generate", words, prompt, "--temperature", 0, "--max-tokens", 6)
        ids = greedy(words, prompt, 6)
        if prompt == "the cat":
            tokenizer = open_run(words).tokenizer
            whole = tokenizer.decode([*tokenizer.encode(prompt).tolist(), *ids])
            assert said.out == f"{whole}\n"
        assert said.out.startswith(prompt)
        assert "  " not in said.out


def test_n_texts_are_those_of_the_seeds_that_follow(decoder):
    options = ("--max-tokens", 12, "--top-p", 0.9)
    together = call("generate", decoder, "the", "--n", 3, "--seed", 5, *options).out
    alone = [call("generate", decoder, "the", "--seed", seed, *options).out for seed in (5, 6, 7)]
    assert together == "---\n".join(alone)
    assert len(set(alone)) > 1


def test_a_stop_string_ends_a_text_and_is_left_out(decoder):
    options = ("--max-tokens", 25, "--seed", 3)
    whole = call("generate", decoder, "", *options).out.removesuffix("\n")
    stop = whole[7:10]
    said = call("generate", decoder, "", *options, "--stop", "zzzz", "--stop", stop, "--json")
    found = json.loads(said.out)
    assert found["text"] == whole[: whole.index(stop)]
    assert found["end"] == "stop"


def test_a_prompt_may_stand_behind_a_stop_string(decoder):
    before = call("generate", decoder, "the cat", "--stop", "a", "--max-tokens", 9)
    behind = call("generate", decoder, "--max-tokens", 9, "--stop", "a", "the cat")
    assert behind == before
    assert before.out.startswith("the cat")


def test_json_tells_each_token_and_its_rivals(decoder):
    said = call("generate", decoder, "the", "--json", "--logprobs", 2, "--max-tokens", 4)
    found = json.loads(said.out)
    assert len(found["ids"]) == len(found["tokens"]) <= 4
    assert found["logprob"] == pytest.approx(sum(one["logprob"] for one in found["tokens"]))
    for one in found["tokens"]:
        assert len(one["top"]) == 2
        assert one["top"][0][1] >= one["top"][1][1]
        assert one["logprob"] <= one["top"][0][1] + 1e-9
    shown = call("generate", decoder, "the", "--logprobs", 2, "--max-tokens", 4).out
    assert shown.splitlines()[-1].startswith(found["tokens"][-1]["piece"] + "\t")


def test_a_beam_search_prints_its_best(decoder):
    said = call("generate", decoder, "the", "--beam", 4, "--n", 2, "--json", "--max-tokens", 6)
    found = [json.loads(line) for line in said.out.splitlines()]
    assert found[0]["score"] >= found[1]["score"]
    best = load(decoder).generate("the", max_tokens=6, beam=4)[0]
    assert found[0]["text"] == best.text
    length = len(best.ids) + (best.end == "end")
    assert best.score == pytest.approx(best.logprob / length)


def test_the_tree_of_a_beam_search_holds_every_step_and_its_answer(decoder, tmp_path):
    file = tmp_path / "new" / "tree.jsonl"
    options = ("--beam", 3, "--json", "--max-tokens", 4)
    said = call("generate", decoder, "the", *options, "--tree", file)
    assert said == call("generate", decoder, "the", *options)  # it changes nothing
    (tree,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert tree["line"] == 1
    found, steps = json.loads(said.out), tree["steps"]
    ended = [(one["worth"], step, one) for step, many in enumerate(steps) for one in many]
    _, step, best = max((one for one in ended if one[2]["fate"] == "ended"), key=lambda it: it[0])
    path = [best]
    while step:
        path.append(steps[step - 1][path[-1]["parent"]])
        step -= 1
    assert [one["token"] for one in path[::-1] if one["token"] != EOS] == found["ids"]
    assert best["logprob"] == pytest.approx(found["logprob"])
    assert best["piece"] == open_run(decoder).tokenizer.pieces([best["token"]])[0]


def test_a_draft_changes_nothing_at_temperature_0(decoder):
    plain = call("generate", decoder, "the", "--temperature", 0, "--max-tokens", 12)
    said = call(
        "generate", decoder, "the", "--temperature", 0, "--max-tokens", 12, "--draft", decoder
    )
    assert said.out == plain.out
    assert "100.0% taken" in said.err


@pytest.fixture
def bigram(data, decoder) -> Path:
    """Counts of the decoder's tokens."""
    counts = ("--model", "bigram", "--out", "bigram")
    tokens = f"tokenizer.file={decoder / 'tokenizer.json'}"
    said = call("train", data / "notes.txt", *counts, "--set", tokens)
    assert said.code == 0, said.err
    return Path("bigram")


def test_a_draft_that_is_no_transformer_proposes_to_one_in_eight_bits(decoder, bigram):
    options = ("--temperature", 0, "--max-tokens", 12, "--int8")
    said = call("generate", decoder, "the", *options, "--draft", bigram)
    assert said.out == call("generate", decoder, "the", *options).out
    assert "% taken" in said.err
    alone = call("generate", bigram, "the", "--int8")
    assert "only a Transformer has weights to keep in eight bits" in mistake(alone)


def test_a_draft_that_cannot_help_is_named_and_what_would_is_said(decoder, translator, words):
    said = call("generate", translator, "the cat", "--draft", decoder)
    assert f"{decoder} (decoder) cannot draft for {translator}: it continues" in mistake(said)
    said = mistake(call("generate", decoder, "the cat", "--draft", words))
    assert f"the draft {words} has another vocabulary" in said
    assert "--set tokenizer.file=OTHER/tokenizer.json" in said


def test_eight_bits_write_too(decoder):
    assert call("generate", decoder, "the", "--int8", "--max-tokens", 5).code == 0


def test_a_translator_writes_from_the_prompt_as_its_source(translator):
    model = load(translator)
    limit = int(1.5 * len(model.speaker.source("the cat"))) + 10
    said = call("generate", translator, "the cat", "--temperature", 0, "--max-tokens", limit)
    assert said.out.removesuffix("\n") == model.translate("the cat", 1)[0].text


def test_an_encoder_says_what_it_can(encoder):
    assert "it fills gaps (`fill`" in mistake(call("generate", encoder, "the cat"))


def test_a_terminal_is_not_sent_what_it_would_obey(monkeypatch):
    for terminal in (True, False):
        out = io.StringIO()
        out.isatty = lambda terminal=terminal: terminal
        monkeypatch.setattr(sys, "stdout", out)
        put("a\x1b[2J\tb\n")
        assert ("\x1b" in out.getvalue()) == (not terminal)
        assert "\tb\n" in out.getvalue()


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--temperature -1", "temperature must be a number, 0 or more"),
        ("--temperature nan", "temperature must be a number, 0 or more"),
        ("--temperature inf", "temperature must be a number, 0 or more"),
        ("--top-k -1", "--top-k must be a whole number"),
        ("--top-p 1.5", "--top-p must be a number above 0, 1 at most"),
        ("--top-p 0", "--top-p must be a number above 0"),
        ("--min-p -0.1", "--min-p must be a number from 0 to 1"),
        ("--repetition-penalty 0", "--repetition-penalty must be a number from 0.01 to 100"),
        ("--max-tokens -1", "--max-tokens must be a whole number, 0 or more"),
        ("--logprobs -1", "--logprobs must be a whole number"),
        ("--seed -1", "--seed must be a whole number"),
        (f"--seed {1 << 63}", "--seed must be a whole number from 0 to"),
        ("--beam -1", "--beam must be 0 or more"),
        ("--beam 2 --n 3", "3 best of 2 beams cannot be had; raise --beam"),
        ("--beam 2 --stop x", "--stop is for drawing"),
        ("--beam 2 --top-k 5", "--top-k is for drawing"),
        ("--beam 2 --temperature 0.8", "--temperature is for drawing"),
        ("--beam 2 --logprobs 0", "--logprobs is for drawing"),
        ("--length-penalty 2", "--length-penalty is for beam search; give --beam too"),
        ("--length-penalty nan", "--length-penalty is for beam search; give --beam too"),
        ("--beam 2 --length-penalty nan", "--length-penalty must be a number from -10 to 10"),
        (f"--seed {(1 << 63) - 1} --n 2", "--seed must be 9223372036854775806 or less with --n 2"),
        ("--tree x.jsonl", "--tree tells of a beam search"),
        ("--beam 2 --tree /dev/null/tree", "cannot write"),
        ("--n 0", "--n must be 1 to 4,096"),
        ("--device abacus", "abacus"),
        ("--draft nowhere", "nowhere"),
        ("--stop x " * 65, "65 are too many; give at most 64"),
    ],
)
def test_a_wrong_option_is_one_sentence_and_nothing_is_printed(decoder, option, words):
    said = call("generate", decoder, "the cat", *option.split())
    assert words in mistake(said)
    assert said.out == ""


def test_what_is_no_run_is_said():
    assert "nowhere" in mistake(call("generate", "nowhere", "the"))


@pytest.fixture
def conversation(monkeypatch, capsys):
    """What is said when some lines, or Ctrl-C, are typed at a prompt."""

    def talk(folder, *typed, **options):
        coming = iter(typed)

        def line(prompt: str) -> str:
            try:
                given = next(coming)
            except StopIteration:
                raise EOFError from None
            if given is KeyboardInterrupt:
                raise given
            return given

        monkeypatch.setattr("builtins.input", line)
        asked = generate.Generate(str(folder), max_tokens=5, **options).settled()
        generate.Conversation(asked, load(folder), None).run()
        return capsys.readouterr()

    return talk


def test_a_conversation_answers_changes_settings_and_survives_mistakes(decoder, conversation):
    lines = ("the cat", ":temperature 0", ":top-k x", ":nonsense", "the cat", ":settings")
    said = conversation(decoder, *lines, seed=1)
    best = open_run(decoder).tokenizer.decode(greedy(decoder, "the cat", 5))
    assert f"the cat{best}\n" in said.out
    assert "top-k must be a number, not 'x'" in said.err
    assert "temperature=0.0" in said.out
    assert "seed=3" in said.out


def test_a_conversation_searches_as_often_as_it_is_asked(decoder, conversation):
    (best,) = load(decoder).generate("the cat", max_tokens=5, beam=3)
    said = conversation(decoder, "the cat", "the cat", beam=3)
    assert (said.out.count(f"the cat{best.text}\n"), said.err) == (2, "")
    said = conversation(decoder, "a dog", ":temperature 0.5", ":beam 3", "the cat")
    assert (said.out.count(f"the cat{best.text}\n"), said.err) == (1, "")


def test_ctrl_c_takes_a_line_back_or_stops_a_text_and_the_conversation_goes_on(
    decoder, conversation, monkeypatch
):
    write = generate.Generate.write

    def stopped(self, model, draft, prompt):
        write(self, model, draft, prompt)
        if prompt == "too long":
            raise KeyboardInterrupt

    monkeypatch.setattr(generate.Generate, "write", stopped)
    lines = (KeyboardInterrupt, ":settings", "too long", ":settings", ":quit", "never read")
    said = conversation(decoder, *lines, n=2)
    assert re.findall(r"seed=(\d+)", said.out) == ["0", "2"]
    assert "never read" not in said.out


def test_the_first_line_of_help_is_true_of_the_model(decoder, translator, conversation):
    assert conversation(decoder).out.startswith("Type a text and the model goes on from there")
    assert conversation(translator).out.startswith("Type a line and the model writes from it as")


def test_what_begins_with_a_colon_is_typed_with_two(decoder, conversation):
    assert "\n:the cat" in "\n" + conversation(decoder, "::the cat").out
    assert "means nothing here" in conversation(decoder, ":the cat").err


def test_behind_the_last_seed_comes_the_first(decoder, conversation):
    said = conversation(decoder, "a", "the", ":seed", seed=2**63 - 2)
    assert re.findall(r"seed=\d+", said.out) == ["seed=0"]
    assert "seed" not in said.err


def test_a_draft_that_proposes_nothing_is_told(decoder):
    said = call("generate", decoder, "the cat", "--draft", decoder, "--max-tokens", 1)
    assert "the draft proposed nothing" in said.err
    assert "taken" not in said.err


def test_a_translator_is_given_one_line(translator):
    said = call("generate", translator, "-", stdin=b"the cat\na dog\n")
    assert "`regard translate` takes a line for a line" in mistake(said)


def test_a_conversation_shows_one_setting_and_knows_other_words_for_some(
    decoder, translator, conversation
):
    said = conversation(decoder, ":top-k", ":top 7", ":top-k", ":tokens 3", ":max-tokens")
    assert re.findall(r"[a-z-]+=\d+", said.out) == ["top-k=0", "top-k=7", "max-tokens=3"]
    said = conversation(translator, ":beam 2", "the cat", ":beam")
    assert "`regard translate --beam` searches" in said.err
    assert "beam=0" in said.out


@pytest.mark.parametrize("how", [("--json",), ("--beam", "2"), ("--logprobs", "0")])
def test_a_full_context_is_told_however_a_text_is_shown(decoder, how):
    said = call("generate", decoder, "the cat", "--max-tokens", 500, *how)
    full = not said.out.rstrip().endswith('"end": "end"}')
    assert ("the model's context is full" in said.err) == full
    assert said.code == 0


def test_a_prompt_may_begin_with_a_hyphen_behind_two(decoder):
    said = call("generate", decoder, "--max-tokens", 3, "--", "-the cat")
    assert said.out.startswith("-the cat")
