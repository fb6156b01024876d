"""Rows written together, against each row written alone by a loop that recomputes everything."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from twins import (
    CONTEXT,
    READERS,
    VOCABULARY,
    WRITERS,
    disliking,
    following,
    only_counted,
    read,
    signs_of,
    sources,
    sources_for,
    words,
    writer,
    written,
)

from regard.decoding.decode_batch import DecodeBatch, Token, continued
from regard.decoding.settings import TEXT, Sampling, SpecialTokens
from regard.errors import RegardError
from regard.models.transformer.model import Transformer
from regard.text.specials import BOS, EOS


def begun(
    module: Transformer,
    prompts: Sequence[Sequence[int]],
    asked: Sequence[Sampling],
    texts: Sequence[Sequence[int]] | None = None,
    **more: object,
) -> DecodeBatch:
    named = {"context": CONTEXT, "signs": signs_of(module), "memory": read(module, texts)}
    return DecodeBatch.begin(module, prompts, asked, **(named | more))


def tokens_of(writing: DecodeBatch) -> dict[int, list[Token]]:
    """All that is written, by row."""
    found: dict[int, list[Token]] = {row.number: [] for row in writing.rows}
    while writing.open:
        for token in writing.step():
            found[token.row].append(token)
    return found


def together(*arguments: object, **named: object) -> list[list[int]]:
    found = tokens_of(begun(*arguments, **named))
    return [[token.id for token in found[row]] for row in sorted(found)]


def wish(row: int, **changes: object) -> Sampling:
    """Settings that differ from row to row."""
    asked = [
        Sampling(temperature=0),
        Sampling(),
        Sampling(temperature=0.7, top_k=5),
        Sampling(temperature=1.5, top_p=0.8137),
        Sampling(temperature=2.0, min_p=0.0731),
        Sampling(repetition_penalty=1.7, banned=(6, 9)),
        Sampling(temperature=0, repetition_penalty=1.4),
        Sampling(temperature=0, banned=(11, 12, 13)),
    ][row % 8]
    return replace(asked, **{"limit": 3 + row * 7 % 25, "seed": 100 + row, **changes})


# --- against recomputing everything ----------------------------------------------------------


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("way", ["greedy", "without repeating", "drawn"])
@pytest.mark.parametrize("seed", range(2))
def test_what_is_kept_from_step_to_step_changes_no_token(name, way, seed):
    module = writer(name, seed, ends=1.0)
    wish = Sampling(
        temperature=1.0 if way == "drawn" else 0.0,
        repetition_penalty=2.0 if way == "without repeating" else 1.0,
    )
    prompts = [[BOS, *words(count, 10 * seed + count)] for count in (0, 1, 4, 12, 3)]
    texts = sources_for(module, 5, seed)
    asked = [replace(wish, seed=seed + row, limit=20 - row) for row in range(5)]
    found = together(module, prompts, asked, texts)
    for row in range(5):
        source = texts and texts[row]
        assert found[row] == written(module, prompts[row], asked[row], source)
    assert len({len(ids) for ids in found}) > 1  # they end at different times
    assert way == "greedy" or len({token for ids in found for token in ids}) > 3


@pytest.mark.parametrize("name", WRITERS)
def test_every_way_to_draw_is_the_twins_way(name):
    module = writer(name, 3, ends=0.5)
    prompts = [[BOS, *words(1 + row % 5, row)] for row in range(8)]
    texts = sources_for(module, 8, 4)
    asked = [wish(row, limit=12) for row in range(8)]
    found = together(module, prompts, asked, texts)
    for row in range(8):
        source = texts and texts[row]
        assert found[row] == written(module, prompts[row], asked[row], source)


# --- neighbours ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITERS)
def test_a_row_alone_is_the_row_beside_32_others(name):
    module = writer(name, 1, ends=1.0)
    prompts = [[BOS, *words(row * 5 % 13, row)] for row in range(33)]
    texts = sources_for(module, 33, 5)
    asked = [wish(row) for row in range(33)]
    found = together(module, prompts, asked, texts)
    for row in range(0, 33, 3):
        alone = together(module, [prompts[row]], [asked[row]], texts and [texts[row]])
        assert found[row] == alone[0]
    assert len({len(ids) for ids in found}) > 8


def test_rows_of_one_prompt_read_it_once_and_are_as_if_each_had_read_it(monkeypatch):
    module = writer("marian-tiny", 2)
    prompts, texts = [[BOS, 8, 9], [BOS, 6]], sources(2, 1)
    asked = [Sampling(seed=row, limit=9) for row in range(5)]
    copies = [1, 0, 0, 1, 0]
    taken = []
    forward = type(module).forward
    monkeypatch.setattr(
        type(module), "forward", lambda *a, **k: (taken.append(a[1].shape), forward(*a, **k))[1]
    )
    found = together(module, prompts, asked, texts, copies=copies)
    assert taken[:2] == [(2, 3), (5, 1)]
    monkeypatch.undo()
    for row, which in enumerate(copies):
        assert found[row] == written(module, prompts[which], asked[row], texts[which])
    assert len({tuple(found[row]) for row in (1, 2, 4)}) == 3


def test_a_row_that_has_ended_is_computed_no_more(monkeypatch):
    module = disliking(writer("gpt2-tiny"), EOS)
    taken = []
    forward = type(module).forward
    monkeypatch.setattr(
        type(module), "forward", lambda *a, **k: (taken.append(len(a[1])), forward(*a, **k))[1]
    )
    asked = [Sampling(limit=limit) for limit in (2, 0, 5, 3)]
    found = together(module, [[BOS]] * 4, asked)
    assert [len(ids) for ids in found] == [2, 0, 5, 3]
    # After the prompts: what each later token needs, and nothing for the last one of a row.
    assert taken == [4, 3, 2, 1, 1]


# --- ends ------------------------------------------------------------------------------------


def test_each_row_says_why_it_ends():
    module = disliking(writer("gpt2-tiny"), EOS)
    prompts = [[BOS, *words(CONTEXT - 3, 0)], [BOS], [BOS, *words(CONTEXT - 1, 1)]]
    asked = [Sampling(limit=9), Sampling(limit=4), Sampling(limit=1)]
    found = tokens_of(begun(module, prompts, asked))
    ends = {row: [token.end for token in tokens] for row, tokens in found.items()}
    # The last token is not read, so it may stand behind the last position.
    assert ends == {0: [None] * 2 + ["room"], 1: [None] * 3 + ["limit"], 2: ["limit"]}
    liking = disliking(module, EOS, 1e4)
    assert [t.end for t in begun(liking, [[BOS]], [Sampling(limit=1)]).step()] == ["end"]


@given(st.integers(0, CONTEXT - 1), st.integers(0, 60))
@settings(max_examples=15)
def test_it_writes_up_to_the_limit_or_the_end_of_the_context(size, limit):
    module = disliking(writer("gpt2-tiny"), EOS)
    found = list(continued(module, words(size, 1), Sampling(limit=limit, temperature=0)))
    assert len(found) == min(limit, CONTEXT - size)


def test_any_of_several_ends_ends_a_text():
    module = writer("llama-tiny", 5)
    signs = SpecialTokens(ends=(7, 8, 9, 10), never=(0,))
    found = together(module, [[BOS]] * 20, [Sampling(seed=s) for s in range(20)], signs=signs)
    lasts = {ids[-1] for ids in found}
    assert lasts == {7, 8, 9, 10}
    assert not {*signs.ends} & {token for ids in found for token in ids[:-1]}


def test_a_row_can_be_stopped_and_the_others_do_not_notice():
    module = disliking(writer("llama-tiny"), EOS)
    asked = [Sampling(seed=row, limit=10) for row in range(3)]
    wanted = together(module, [[BOS]] * 3, asked)
    writing = begun(module, [[BOS]] * 3, asked)
    found = [token for _ in range(4) for token in writing.step()]
    writing.stop(1)
    while writing.open:
        found += writing.step()
    by_row = [[token.id for token in found if token.row == row] for row in range(3)]
    assert by_row == [wanted[0], wanted[1][:4], wanted[2]]
    assert writing.step() == [] == writing.step()


def test_nothing_is_open_where_nothing_is_wanted():
    writing = begun(writer("gpt2-tiny"), [[BOS], [BOS]], [Sampling(limit=0)] * 2)
    assert not writing.open
    assert writing.step() == []


@pytest.mark.parametrize("temperature", [0, 1e-300, 0.5, 1.0, 1e300])
def test_specials_are_never_written_however_probable(temperature):
    module = writer("gpt2-tiny", 1)
    for token in TEXT.never:
        module = disliking(module, token, 1e3)
    module = disliking(module, EOS, -1e3)
    for seed in range(5):
        asked = Sampling(limit=15, temperature=temperature, seed=seed)
        found = list(continued(module, [8], asked))
        assert len(found) == 15 or temperature > 1  # then </s> is as likely as any other
        assert not {*found} & {*TEXT.never, EOS}


def test_what_is_banned_in_one_row_may_be_written_in_another():
    module = disliking(writer("llama-tiny"), EOS)
    asked = [Sampling(temperature=3.0, banned=(5, 6, 7)), Sampling(temperature=3.0)]
    asked = [replace(one, limit=39) for one in asked * 3]
    found = together(module, [[BOS]] * 6, [replace(a, seed=i) for i, a in enumerate(asked)])
    assert not {5, 6, 7} & {token for ids in found[::2] for token in ids}
    assert {5, 6, 7} <= {token for ids in found[1::2] for token in ids}


# --- log-probabilities -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2-tiny", "marian-tiny"])
def test_logprobs_are_the_models_own_before_any_filter(name):
    module = writer(name, 2)
    texts = sources_for(module, 4, 3)
    counts = [3, None, 0, VOCABULARY + 9]
    asked = [
        Sampling(temperature=2.0, top_k=3, repetition_penalty=2.0, logprobs=count, limit=6, seed=i)
        for i, count in enumerate(counts)
    ]
    prompts = [[BOS], [BOS, 5], [BOS, 6, 7], [BOS, 8]]
    for row, tokens in tokens_of(begun(module, prompts, asked, texts)).items():
        text, count = list(prompts[row]), counts[row]
        for token in tokens:
            if count is None:
                assert (token.logprob, token.top) == (None, ())
                continue
            logprobs = following(module, text, texts and texts[row]).log_softmax(-1)
            assert token.logprob == pytest.approx(float(logprobs[token.id]), abs=1e-5)
            best = logprobs.sort(descending=True)
            kept = min(count, VOCABULARY)
            assert [one for one, _ in token.top] == best.indices[:kept].tolist()
            assert [v for _, v in token.top] == pytest.approx(best.values[:kept].tolist(), abs=1e-5)
            text.append(token.id)


def test_asking_for_logprobs_changes_no_token():
    module = writer("llama-tiny", 4)
    plain = [wish(row) for row in range(8)]
    noted = [replace(one, logprobs=5) for one in plain]
    assert together(module, [[BOS]] * 8, plain) == together(module, [[BOS]] * 8, noted)


# --- one text --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny"])
@pytest.mark.parametrize("seed", range(3))
def test_a_text_is_continued_by_the_most_probable_token_each_time(name, seed):
    module = writer(name, seed, ends=1.0)
    for prompt in ([], [7], [5, 9, 6, 12]):
        asked = Sampling(limit=12, temperature=0)
        wanted = [t for t in written(module, [BOS, *prompt], asked) if t != EOS]
        assert list(continued(module, prompt, asked)) == wanted


def test_seeds_reproduce_and_differ():
    module = disliking(writer("gpt2-tiny"), EOS)
    found = [list(continued(module, [6, 7], Sampling(limit=15, seed=s))) for s in (1, 1, 2)]
    assert found[0] == found[1] != found[2]
    torch.manual_seed(5)
    before = torch.rand(1)
    torch.manual_seed(5)
    list(continued(module, [6], Sampling(limit=5, seed=3)))
    assert torch.equal(torch.rand(1), before)  # nobody else's draws are disturbed


def test_it_ends_with_the_text():
    liking = writer("gpt2-tiny", ends=1e4)
    assert list(continued(liking, [6], Sampling(limit=10))) == []
    module = writer("gpt2-tiny", ends=2.0)
    lengths = {len(list(continued(module, [6], Sampling(limit=20, seed=s)))) for s in range(20)}
    assert len(lengths) > 3


def test_it_leaves_gradients_on_between_tokens():
    for _ in continued(writer("gpt2-tiny"), [6], Sampling(limit=3)):
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()


def test_drawn_tokens_are_as_frequent_as_the_model_says():
    """All the way through: a first token, drawn with ten thousand seeds."""
    module = writer("llama-tiny", 6)
    count = 10_000
    asked = [Sampling(limit=1, seed=seed) for seed in range(count)]
    found = together(module, [[BOS, 9]], asked, copies=[0] * count)
    logits = following(module, [BOS, 9], None).double()
    logits[list(TEXT.never)] = -torch.inf
    shares = logits.softmax(-1).numpy()
    seen = np.bincount([ids[0] for ids in found], minlength=VOCABULARY) / count
    assert np.all(np.abs(seen - shares) <= 5 * np.sqrt(shares * (1 - shares) / count))


# --- what is refused -------------------------------------------------------------------------


def refusal(*arguments: object, **named: object) -> str:
    with pytest.raises(RegardError) as caught:
        together(*arguments, **named)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


def test_a_prompt_longer_than_the_context_is_one_sentence():
    module = writer("llama-tiny")
    prompts = [[BOS], [BOS, *words(CONTEXT, 0)]]
    found = refusal(module, prompts, [Sampling(limit=1)] * 2)
    assert found == "the prompt has 41 tokens, but the model's context holds 40; shorten it"
    with pytest.raises(RegardError, match="the prompt has 41 tokens"):
        list(continued(module, words(CONTEXT, 0), Sampling(limit=1)))


@pytest.mark.parametrize(("prompts", "asked"), [([], []), ([[]], [Sampling()])])
def test_nothing_to_begin_with_is_one_sentence(prompts, asked):
    assert "nothing to begin with" in refusal(writer("gpt2-tiny"), prompts, asked)


def test_other_wrong_input_is_one_sentence():
    module, one = writer("gpt2-tiny"), [Sampling(limit=3)]
    assert "token id 24" in refusal(module, [[BOS, VOCABULARY]], one)
    assert "token id -1" in refusal(module, [[BOS, -1]], one)
    assert "2 rows need as many settings, not 1" in refusal(module, [[BOS], [BOS]], one)
    assert "reads no source" in refusal(module, [[BOS]], one, memory=read(writer("t5-tiny"), [[5]]))
    assert "source" in refusal(writer("t5-tiny"), [[BOS]], one)
    assert "banned token 24" in refusal(module, [[BOS]], [Sampling(banned=(VOCABULARY,))])
    every = Sampling(banned=tuple(range(VOCABULARY)))
    assert "every token is banned" in refusal(module, [[BOS]], [every])
    assert "prompt 3" in refusal(module, [[BOS]], one, copies=[3])


@pytest.mark.parametrize("asked", [Sampling(temperature=0), Sampling()])
@pytest.mark.parametrize("name", READERS)
def test_damaged_weights_are_one_sentence(name, asked):
    module = disliking(writer(name), 7, math.nan)
    found = refusal(module, [[BOS]], [asked], [[5, 6]])
    assert found == "the model gives no numbers (NaN or infinity); its weights are damaged"


@pytest.mark.parametrize("neighbour", [None, Sampling(temperature=0), Sampling(seed=3)])
@pytest.mark.parametrize("temperature", [0, 1])
def test_where_no_token_has_a_probability_nothing_is_written(temperature, neighbour):
    ngram = only_counted([[5, 6, 7, 8, 9], [5, 6, 5, 6, 9]])  # and what follows 9 9?
    prompts, asked = [[BOS, 9, 9]], [Sampling(limit=3, temperature=temperature)]
    if neighbour is not None:
        prompts, asked = [[BOS, 5], *prompts], [replace(neighbour, limit=3), *asked]
    found = refusal(ngram, prompts, asked)
    assert found == "the model gives no probability to any token that may be written"


def test_favourites_that_are_equal_stand_in_the_vocabularys_order_whoever_is_beside():
    counts = only_counted([[7, 8], [9, 8], [6, 8], [11, 8], [13, 8], [12, 8]], order=2)
    asked = [Sampling(limit=1, logprobs=few, temperature=0.0) for few in (3, 20)]
    alone = tokens_of(begun(counts, [[BOS]], asked[:1]))[0][0].top
    beside = tokens_of(begun(counts, [[BOS], [BOS]], asked))[0][0].top
    assert [token for token, _ in alone] == [6, 7, 9]
    assert beside == alone


def test_copies_may_be_of_different_numbers():
    """Three rows read the first source and two the second: none shares a row of what was read."""
    module, texts = writer("marian-tiny", 2), sources(2, 5)
    asked = [Sampling(limit=6, seed=seed) for seed in range(5)]
    copies = [0, 0, 0, 1, 1]
    found = together(module, [[BOS], [BOS]], asked, texts, copies=copies)
    alone = [
        together(module, [[BOS]], [one], [texts[which]])[0]
        for one, which in zip(asked, copies, strict=True)
    ]
    assert found == alone
