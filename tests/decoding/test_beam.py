"""Beam search against lists that recompute everything, and against trying every sequence."""

import itertools
import math

import numpy as np
import pytest
import torch
from twins import (
    CONTEXT,
    READERS,
    VOCABULARY,
    WRITERS,
    assert_as_the_twin,
    disliking,
    following,
    found_by,
    only_counted,
    read,
    signs_of,
    sources,
    sources_for,
    whole,
    words,
    writer,
    written,
)

from regard.decoding.search.beam import search
from regard.decoding.settings import TARGET, Beam, Sampling, SpecialTokens
from regard.decoding.stable_topk import BLOCK
from regard.errors import RegardError
from regard.models.counting.model import NGram
from regard.text.specials import BOS, EOS

# --- against lists ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_what_is_kept_from_step_to_step_changes_no_token(name, beams, penalty):
    module = writer(name, 1, ends=1.0)
    prompts = [[BOS, *words(count, count)] for count in (0, 3, 1, 6)]
    beam = Beam(beams, penalty, n_best=beams)
    texts = sources_for(module, 4, 2)
    assert_as_the_twin(module, prompts, [10, 9, 12, 6], beam, texts)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("beams", "penalty"), [(2, 0.8), (3, -1.0), (8, 2.0)])
def test_it_is_beam_search_written_with_lists(seed, beams, penalty):
    module = writer(READERS[seed % 2], seed, ends=1.5)
    texts = sources(3, seed + 50)
    beam = Beam(beams, penalty, n_best=beams)
    assert_as_the_twin(module, [[BOS]] * 3, [9, 11, 7], beam, texts)


def test_the_twins_searches_end_in_every_way():
    """Else the tests above would say less than they seem to."""
    kinds, lengths = set(), set()
    for name in WRITERS:
        module = writer(name, 1, ends=1.0)
        beam = Beam(4, 0.0, n_best=4)
        texts = sources_for(module, 4, 2)
        for found in found_by(module, [[BOS]] * 4, [10, 9, 12, 6], beam, texts):
            for one in found.hypotheses:
                kinds.add(one.ended)
                lengths.add(len(one.ids))
    assert kinds == {True, False}
    assert len(lengths) > 5


@pytest.mark.parametrize("name", WRITERS)
def test_one_beam_is_the_most_probable_token_each_time(name):
    module = writer(name, 2, ends=0.5)
    texts = sources_for(module, 5, 1)
    found = found_by(module, [[BOS]] * 5, [15] * 5, Beam(1), texts)
    for row in range(5):
        text = [BOS]
        while len(text) < 16 and (len(text) == 1 or text[-1] != EOS):
            logits = following(module, text, texts and texts[row])
            logits[list(signs_of(module).never)] = -torch.inf
            text.append(int(logits.argmax()))
        assert whole(found[row].hypotheses[0]) == text[1:]


@pytest.mark.parametrize("order", [1, 2, 3])
def test_of_equals_the_first_is_taken_as_in_greedy_writing(order):
    """N-grams have equals at every step."""
    rng = np.random.default_rng(order)
    texts = [rng.integers(5, 12, rng.integers(1, 6)).tolist() for _ in range(8)]
    module = only_counted(texts, order=order)
    prompts = [[BOS], [BOS, texts[0][0]], [BOS, texts[1][0]]]
    greedy = [written(module, prompt, Sampling(6, 0.0)) for prompt in prompts]
    found = found_by(module, prompts, [6] * 3, Beam(1))
    assert [whole(one.hypotheses[0]) for one in found] == greedy
    assert_as_the_twin(module, prompts, [6] * 3, Beam(3, n_best=3))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("beams", [1, 3])
def test_an_open_beam_is_judged_before_it_pays_for_coverage(beams, seed):
    module = writer("marian-tiny", seed, ends=4.0, dtype=torch.float64)
    beam = Beam(beams, n_best=beams, coverage_penalty=0.02)
    assert_as_the_twin(module, [[BOS]] * 2, [12, 9], beam, sources(2, seed + 3))


def test_in_float64_scores_are_as_exact_as_the_model():
    module = writer("marian-tiny", 3, dtype=torch.float64)
    text = sources(1, 3)[0]
    for one in found_by(module, [[BOS]], [20], Beam(3, n_best=3), [text])[0].hypotheses:
        ids, total = whole(one), 0.0
        for place, token in enumerate(ids):
            logits = following(module, [BOS, *ids[:place]], text)
            total += float(logits.log_softmax(-1)[token])
        assert one.logprob == pytest.approx(total, abs=1e-10)


@pytest.mark.parametrize("name", ["marian-tiny", "llama-tiny"])
def test_a_large_vocabulary_is_searched_in_the_same_way(name):
    beam = Beam(2, n_best=2)
    size = 4 * 2 * beam.beams * BLOCK + 5  # so that blocks are looked at
    module = writer(name, 2, ends=3.0, vocabulary=size)
    prompts = [[BOS, *words(row, row, size)] for row in range(4)]
    texts = sources_for(module, 4, 3)
    found = assert_as_the_twin(module, prompts, [6] * 4, beam, texts)
    assert len({token for one in found for h in one.hypotheses for token in h.ids}) > 4


@pytest.mark.parametrize("beams", [1, 2, 5])
def test_several_ends_leave_as_many_open_beams(beams):
    """With e ends, the best 2 · beams candidates may all be ends."""
    signs = SpecialTokens(ends=(2, 7, 8, 9, 10, 11), never=(0, 1))
    module = writer("llama-tiny", 1)
    for end in signs.ends:
        module = disliking(module, end, 3.0)
    prompts = [[BOS, *words(3, row)] for row in range(4)]
    assert_as_the_twin(module, prompts, [6] * 4, Beam(beams, 2.0, n_best=beams), signs=signs)


def test_a_model_without_ends_writes_up_to_the_limit():
    signs = SpecialTokens(ends=(), never=())
    module = writer("gpt2-tiny", 1)
    found = assert_as_the_twin(module, [[BOS]], [6], Beam(3, n_best=3), signs=signs)
    assert [len(one.ids) for one in found[0].hypotheses] == [6] * 3


# --- against every sequence ------------------------------------------------------------------

FEW = 8  # tokens, of which three are never written and one ends


def every_answer(module, prompt, source, limit, beam):
    """All that can be written within the limit: what it is worth, and the tokens."""
    open_words = [w for w in range(FEW) if w not in TARGET.never and w not in beam.banned]
    after: dict[tuple[int, ...], list[float]] = {}
    for length in range(limit):
        for ids in itertools.product([w for w in open_words if w != EOS], repeat=length):
            logits = following(module, [*prompt, *ids], source)
            after[ids] = logits.double().log_softmax(-1).tolist()
    answers = []
    for ids, logprobs in after.items():
        before = sum(after[ids[:place]][token] for place, token in enumerate(ids))
        for token in open_words:
            if token == EOS or len(ids) == limit - 1:
                total = before + logprobs[token]
                answers.append((total / (len(ids) + 1) ** beam.length_penalty, [*ids, token]))
    return sorted(answers, key=lambda one: -one[0])


@pytest.mark.parametrize("name", ["marian-tiny", "gpt2-tiny"])
@pytest.mark.parametrize("penalty", [-0.5, 0.0, 0.6, 1.0, 2.0])
def test_with_beams_for_everything_it_ranks_all_sequences(name, penalty):
    module = writer(name, 4, ends=1.0, vocabulary=FEW)
    texts = sources_for(module, 2, 3)
    prompts = [[BOS], [BOS, 6, 5]]
    for banned in ((), (6,)):
        beam = Beam(150, penalty, n_best=150, banned=banned)
        found = search(module, prompts, [3, 4 if banned else 3], beam, memory=read(module, texts))
        for row in range(2):
            limit = 4 if row and banned else 3
            ranked = every_answer(module, prompts[row], texts and texts[row], limit, beam)
            ours = found[row].hypotheses
            assert len(ours) == len(ranked) > 10
            assert [whole(one) for one in ours] == [ids for _, ids in ranked]
            assert [o.worth for o in ours] == pytest.approx([w for w, _ in ranked], abs=1e-4)


@pytest.mark.parametrize("beams", [7, 40])
@pytest.mark.parametrize("vocabulary", [6, 8])
def test_more_beams_than_there_are_tokens_are_no_harm(beams, vocabulary):
    module = writer("marian-tiny", 5, ends=0.5, vocabulary=vocabulary)
    texts = [[5, 5, EOS], [5, EOS]]
    beam = Beam(beams, n_best=beams)
    assert_as_the_twin(module, [[BOS]] * 2, [5, 4], beam, texts, TARGET)


# --- rows ------------------------------------------------------------------------------------


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("name", WRITERS)
def test_a_rows_answers_do_not_depend_on_its_batch(name, beams):
    module = writer(name, 3, ends=1.0)
    prompts = [[BOS, *words(row * 3 % 5, row)] for row in range(9)]
    limits = [3 + row * 5 % 13 for row in range(9)]
    texts = sources_for(module, 9, 6)
    watch = texts is not None
    beam = Beam(beams, 0.7, n_best=beams, coverage_penalty=0.2 if watch else 0.0, attention=watch)
    together = found_by(module, prompts, limits, beam, texts)
    for row in range(9):
        alone = found_by(module, [prompts[row]], [limits[row]], beam, texts and [texts[row]])[0]
        for ours, other in zip(together[row].hypotheses, alone.hypotheses, strict=True):
            assert (ours.ids, ours.ended) == (other.ids, other.ended)
            assert ours.worth == pytest.approx(other.worth, abs=1e-4)
            if watch:
                size = len(texts[row])
                torch.testing.assert_close(
                    ours.attention[:, :size], other.attention, atol=1e-5, rtol=0
                )
                assert ours.attention[:, size:].abs().sum() == 0


def test_a_row_that_is_done_is_computed_no_more(monkeypatch):
    module = disliking(writer("gpt2-tiny"), EOS)
    taken = []
    forward = type(module).forward
    monkeypatch.setattr(
        type(module), "forward", lambda *a, **k: (taken.append(len(a[1])), forward(*a, **k))[1]
    )
    found_by(module, [[BOS]] * 3, [1, 4, 2], Beam(5))
    assert taken == [3, 10, 5, 5]


@pytest.mark.parametrize("beams", [1, 3])
def test_a_model_that_never_ends_stops_at_each_rows_limit(beams):
    module = disliking(writer("marian-tiny"), EOS)
    limits = [5, 1, CONTEXT]
    found = found_by(module, [[BOS]] * 3, limits, Beam(beams), sources(3, 0))
    assert [len(one.hypotheses[0].ids) for one in found] == limits
    assert not any(one.hypotheses[0].ended for one in found)


@pytest.mark.parametrize("beams", [1, 3])
def test_a_model_that_ends_at_once_writes_nothing(beams):
    module = writer("marian-tiny", ends=1e4)
    for found in found_by(module, [[BOS]] * 3, [9] * 3, Beam(beams), sources(3, 0)):
        assert found.hypotheses[0].ids == []
        assert found.hypotheses[0].ended
        assert found.hypotheses[0].logprob == pytest.approx(0)


# --- what is forced and what is banned -------------------------------------------------------


@pytest.mark.parametrize("name", ["t5-tiny", "gpt2-tiny"])
def test_a_forced_beginning_counts_neither_as_length_nor_as_probability(name):
    module = writer(name, 4, ends=1.0)
    texts = sources_for(module, 1, 8)
    forced = [9, 14, 6]
    beam = Beam(3, 1.0, n_best=3)
    found = assert_as_the_twin(module, [[BOS, *forced]], [8], beam, texts)
    for one in found[0].hypotheses:
        assert one.worth == pytest.approx(one.logprob / len(whole(one)))


@pytest.mark.parametrize("beams", [1, 4, 50])
def test_what_a_target_never_holds_is_not_written(beams):
    module = writer("marian-tiny", 1)
    for token in TARGET.never:
        module = disliking(module, token, 1e4)
    for found in found_by(module, [[BOS]] * 4, [9] * 4, Beam(beams), sources(4, 1)):
        assert found.hypotheses
        for one in found.hypotheses:
            assert not {*one.ids} & {*TARGET.never, EOS}


def test_banned_tokens_are_not_written_and_a_score_stays_what_the_model_says():
    module = writer("t5-tiny", 2, ends=1.0)
    texts = sources(2, 4)
    free = found_by(module, [[BOS]] * 2, [8] * 2, Beam(4), texts)
    banned = tuple({token for found in free for token in found.hypotheses[0].ids})
    assert banned
    beam = Beam(4, n_best=4, banned=banned)
    for row, found in enumerate(assert_as_the_twin(module, [[BOS]] * 2, [8] * 2, beam, texts)):
        for one in found.hypotheses:
            assert not {*one.ids} & {*banned}
            ids, total = whole(one), 0.0
            for place, token in enumerate(ids):
                logits = following(module, [BOS, *ids[:place]], texts[row])
                total += float(logits.log_softmax(-1)[token])
            assert one.logprob == pytest.approx(total, abs=1e-4)


def test_where_the_end_is_banned_no_hypothesis_ends():
    module = writer("marian-tiny", 2, ends=3.0)
    found = found_by(module, [[BOS]], [5], Beam(3, n_best=3, banned=(EOS,)), sources(1, 1))
    assert [len(one.ids) for one in found[0].hypotheses] == [5] * 3


# --- what is refused -------------------------------------------------------------------------


def refusal(*arguments: object, **named: object) -> str:
    with pytest.raises(RegardError) as caught:
        search(*arguments, **named)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


def test_nothing_to_search_for_is_nothing():
    assert search(writer("gpt2-tiny"), [], [], Beam()) == []


WRONG = {
    "beams": [0, -1, 1.5, math.nan, 100_000, True],
    "n_best": [0, -1, 2.0],
    "length_penalty": [math.nan, math.inf, "long", 1e6],
    "coverage_penalty": [-0.1, math.nan, math.inf],
    "banned": [(-1,), ("a",), (0.5,)],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in WRONG.items() for v in vs])
def test_an_impossible_wish_names_what_is_wrong(name, value):
    with pytest.raises(RegardError, match=rf"^beam search: (?s:.*){name}"):
        Beam(**{name: value})


def test_more_best_than_beams_is_one_sentence():
    with pytest.raises(RegardError, match=r"^beam search: 5 best of 4 beams .* raise beams$"):
        Beam(beams=4, n_best=5)


def test_wrong_input_is_one_sentence():
    module, memory = writer("marian-tiny"), read(writer("marian-tiny"), [[5, 6]])
    assert "a limit of 0" in refusal(module, [[BOS]], [0], Beam(), memory=memory)
    assert "a limit of -3" in refusal(module, [[BOS]], [-3], Beam(), memory=memory)
    assert "1 prompts need as many" in refusal(module, [[BOS]], [3, 3], Beam(), memory=memory)
    assert "nothing to begin with" in refusal(module, [[]], [3], Beam(), memory=memory)
    assert "token id 24" in refusal(module, [[BOS, VOCABULARY]], [3], Beam(), memory=memory)
    assert "source" in refusal(module, [[BOS]], [3], Beam())
    beam = Beam(banned=(VOCABULARY,))
    assert "banned token 24" in refusal(module, [[BOS]], [3], beam, memory=memory)
    beam = Beam(banned=tuple(range(VOCABULARY)))
    assert "every token is banned" in refusal(module, [[BOS]], [3], beam, memory=memory)
    for beam in (Beam(attention=True), Beam(coverage_penalty=0.5)):
        assert "no attention to return" in refusal(writer("gpt2-tiny"), [[BOS]], [3], beam)


def test_positions_behind_a_learned_table_are_one_sentence():
    module = disliking(writer("gpt2-tiny"), EOS)
    prompt = [BOS, *words(CONTEXT, 0)]
    assert "41 positions" in refusal(module, [prompt], [1], Beam(2))
    assert "41 positions" in refusal(module, [[BOS]], [CONTEXT + 2], Beam(2))
    # The last token is not read, so it may stand behind the last position.
    assert len(search(module, [[BOS]], [CONTEXT], Beam(2))[0].hypotheses[0].ids) == CONTEXT


@pytest.mark.parametrize("name", WRITERS)
def test_damaged_weights_are_one_sentence(name):
    module = disliking(writer(name), 7, math.nan)
    memory = read(module, [[5, 6]]) if name in READERS else None
    found = refusal(module, [[BOS]], [3], Beam(2), memory=memory)
    assert found == "the model gives no numbers (NaN or infinity); its weights are damaged"


@pytest.mark.parametrize("bias", [math.nan, math.inf])
def test_no_numbers_beside_no_probability_are_damage(bias):
    module = disliking(writer("gpt2-tiny"), 7, bias)
    assert "its weights are damaged" in refusal(module, [[BOS]], [3], Beam(2))


# --- where nothing has a probability ---------------------------------------------------------

NONE = "the model gives no probability to any token that may be written"


@pytest.mark.parametrize("beams", [1, 3])
def test_a_row_that_cannot_go_on_is_one_sentence(beams):
    ngram = only_counted([[5, 6, 7, 8, 9], [5, 6, 5, 6, 9]])
    assert refusal(ngram, [[BOS, 5], [BOS, 9, 9]], [3, 3], Beam(beams)) == NONE
    # Neither where it comes later: only 5 follows 8, and it is banned.
    ngram = only_counted([[6, 8, 5], [6, 8, 5]])
    assert refusal(ngram, [[BOS]], [5], Beam(beams, banned=(5,))) == NONE


def dead_ends() -> NGram:
    """Behind 7 stands 9 alone; 6 is less probable, and has a way to the end."""
    return only_counted([[7, 9], [7, 9], [7, 9], [6, 8], [6], [6, 8, 8]], order=2)


@pytest.mark.parametrize("beams", [2, 3, 5])
def test_a_beam_without_a_way_on_gives_its_slot_away(beams):
    beam = Beam(beams, 0.0, n_best=beams, banned=(9,))
    (found,) = search(dead_ends(), [[BOS]], [4], beam)
    # p(6) = 1/2; behind it the end 1/3 and 8 2/3; behind 8 the end 2/3 and 8 1/3.
    shares = {(6,): 1 / 6, (6, 8): 2 / 9, (6, 8, 8): 2 / 27, (6, 8, 8, 8): 1 / 27}
    ranked = sorted(shares, key=lambda ids: -shares[ids])
    assert [tuple(one.ids) for one in found.hypotheses] == ranked[:beams]
    for one in found.hypotheses:
        assert math.exp(one.logprob) == pytest.approx(shares[tuple(one.ids)], abs=1e-6)


def test_the_most_probable_beam_may_be_the_one_that_cannot_go_on():
    (found,) = search(dead_ends(), [[BOS]], [2], Beam(2, record=True, n_best=2, banned=(9,)))
    first = [(one.token, one.fate) for one in found.tree[0]]
    assert sorted(first) == [(6, "kept"), (7, "kept")]
    assert {one.token for one in found.tree[1]} == {EOS, 8}
    assert refusal(dead_ends(), [[BOS, 7]], [2], Beam(2, banned=(9,))) == NONE


def test_a_vocabulary_without_some_signs_is_no_harm():
    module = writer("gpt2-tiny", vocabulary=4)
    found = search(module, [[BOS]], [3], Beam(2, n_best=2), signs=TARGET)
    assert all({*one.ids} <= {EOS, 3} for one in found[0].hypotheses)
