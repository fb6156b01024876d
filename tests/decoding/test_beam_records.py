"""What a beam search brings beside its answers: the tree it grew, attention, coverage."""

import pytest
import torch
from twins import (
    READERS,
    WRITERS,
    alignment,
    assert_as_the_twin,
    covered,
    following,
    found_by,
    sources,
    sources_for,
    whole,
    writer,
)

from regard.decoding.settings import Beam
from regard.text.specials import BOS

# --- the record ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("beams", [1, 4])
def test_the_record_is_a_tree_of_which_the_answers_are_paths(name, beams):
    module = writer(name, 1, ends=1.0)
    texts = sources_for(module, 3, 2)
    prompts = [[BOS], [BOS, 7, 8], [BOS, 9]]
    beam = Beam(beams, 0.7, n_best=beams, record=True)
    for row, found in enumerate(found_by(module, prompts, [8, 6, 7], beam, texts)):
        paths: list[list[list[int]]] = []
        ended = []
        for step, candidates in enumerate(found.tree):
            paths.append([])
            assert [c.logprob for c in candidates] == sorted(c.logprob for c in candidates)[::-1]
            assert sum(c.fate == "kept" for c in candidates) <= beams
            for candidate in candidates:
                text, total = [], 0.0
                if step:
                    parent = found.tree[step - 1][candidate.parent]
                    assert parent.fate == "kept"
                    text, total = paths[step - 1][candidate.parent], parent.logprob
                else:
                    assert candidate.parent == -1
                paths[step].append([*text, candidate.token])
                logits = following(module, [*prompts[row], *text], texts and texts[row])
                own = float(logits.log_softmax(-1)[candidate.token])
                assert candidate.logprob == pytest.approx(total + own, abs=1e-4)
                assert candidate.worth == pytest.approx(candidate.logprob / (step + 1) ** 0.7)
                assert candidate.coverage == 0
                if candidate.fate == "ended":
                    ended.append((candidate.worth, paths[step][-1]))
        assert len({tuple(path) for level in paths for path in level}) == sum(map(len, paths))
        best = sorted(ended, key=lambda one: -one[0])[:beams]
        assert [whole(one) for one in found.hypotheses] == [ids for _, ids in best]
        assert [one.worth for one in found.hypotheses] == [worth for worth, _ in best]


def test_without_a_wish_nothing_is_recorded():
    module = writer("marian-tiny")
    found = found_by(module, [[BOS]], [4], Beam(2), sources(1, 0))[0]
    assert found.tree is None
    assert found.hypotheses[0].attention is None


def test_a_record_and_attention_change_nothing():
    module, texts = writer("marian-tiny", 3, ends=1.0), sources(4, 3)
    plain = found_by(module, [[BOS]] * 4, [9] * 4, Beam(4, n_best=4), texts)
    beam = Beam(4, n_best=4, record=True, attention=True)
    more = found_by(module, [[BOS]] * 4, [9] * 4, beam, texts)
    for one, other in zip(plain, more, strict=True):
        assert [h.ids for h in one.hypotheses] == [h.ids for h in other.hypotheses]
        assert [h.worth for h in one.hypotheses] == [h.worth for h in other.hypotheses]


# --- attention and coverage ------------------------------------------------------------------


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("forced", [[[], [], []], [[6], [9], [5]], [[], [7, 8, 9], [5]]])
def test_attention_is_what_a_pass_over_the_whole_answer_records(name, beams, forced):
    module = writer(name, 2, ends=1.0)
    texts = sources(3, 9)
    longest = max(map(len, texts))
    assert len({*map(len, texts)}) > 1
    prompts = [[BOS, *more] for more in forced]
    beam = Beam(beams, n_best=beams, attention=True)
    found = found_by(module, prompts, [9, 7, 8], beam, texts)
    for prompt, text, one in zip(prompts, texts, found, strict=True):
        for answer in one.hypotheses:
            passed = alignment(module, [*prompt, *answer.ids], text)
            wanted = passed[len(prompt) - 1 :][: len(whole(answer))]
            assert answer.attention.shape == (len(whole(answer)), longest)
            torch.testing.assert_close(answer.attention[:, : len(text)], wanted, atol=1e-5, rtol=0)
            assert answer.attention[:, len(text) :].abs().sum() == 0
            assert wanted.std() > 0.02  # else all would look alike


def test_beams_are_really_reordered_in_these_tests():
    module, texts = writer("marian-tiny", 2, ends=1.0), sources(3, 9)
    beam = Beam(4, n_best=4, record=True)
    trees = [found.tree for found in found_by(module, [[BOS]] * 3, [9, 7, 8], beam, texts)]
    parents = [[c.parent for c in step if c.fate == "kept"] for tree in trees for step in tree[1:]]
    assert any(len({*step}) < len(step) for step in parents)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("forced", [[[], [], []], [[], [7, 8, 9], [5]]])
def test_coverage_is_what_scoring_each_answer_again_says(name, beams, forced):
    module = writer(name, 2, ends=1.0)
    texts = sources(3, 9)
    prompts = [[BOS, *more] for more in forced]
    beam = Beam(beams, 0.8, coverage_penalty=0.3, n_best=beams, record=True)
    found = assert_as_the_twin(module, prompts, [9, 7, 8], beam, texts)
    all_lost = []
    for prompt, text, one in zip(prompts, texts, found, strict=True):
        for answer in one.hypotheses:
            looks = alignment(module, [*prompt, *answer.ids], text)
            lost = 0.3 * covered(looks[: len(prompt) - 1 + len(whole(answer))])  # forced ones too
            length = len(whole(answer))
            all_lost.append(lost)
            assert answer.worth == pytest.approx(answer.logprob / length**0.8 + lost, abs=1e-4)
            ends = [c for c in one.tree[length - 1] if c.worth == answer.worth]
            assert ends[0].coverage == pytest.approx(lost, abs=1e-4)
    assert min(all_lost) < -0.1


def test_coverage_changes_what_is_best():
    """Else the test above would not notice a penalty that is only told."""
    module, texts = writer("marian-tiny", 2, ends=1.0), sources(12, 9)
    best = [
        [
            found.hypotheses[0].ids
            for found in found_by(
                module, [[BOS]] * 12, [12] * 12, Beam(5, coverage_penalty=penalty), texts
            )
        ]
        for penalty in (0.0, 3.0)
    ]
    assert best[0] != best[1]
