"""Captions judged by what was written, against sacrebleu and by hand."""

from pathlib import Path

import pytest
import sacrebleu

from regard.data.readers.captions import Captioned
from regard.decoding.captions import Caption
from regard.training.caption_scores import compared, free_rules


def told(*captions: str) -> Captioned:
    return Captioned(Path("picture.png"), captions, (None,) * len(captions), {}, 0)


def written(*texts: str) -> list[Caption]:
    return [Caption(text, [7] * len(text.split()), -1.0, -1.0) for text in texts]


REFERENCES = [
    told("a red circle is left of a blue square", "a blue square is right of a red circle"),
    told("a green ring is above a white star"),
    told("a cross is below a ring", "there is a cross under a ring", "below a ring is a cross"),
]


def test_exact_is_any_of_the_captions_to_the_letter():
    texts = (
        "a blue square is right of a red circle",
        "a green ring is above a white star.",
        "below a ring is a cross",
    )
    found = compared(written(*texts), REFERENCES)
    assert found.exact == pytest.approx(2 / 3)
    assert found.tokens == sum(len(text.split()) + 1 for text in texts)


def test_bleu_counts_the_words_of_all_captions_of_a_picture():
    texts = ["a red circle is right of a square", "a green ring above a star", "a cross below"]
    found = compared(written(*texts), REFERENCES)
    # An empty reference has no n-grams; but its length is 0, which may be the closest one. So here
    # each picture has as many as the most, the last of them again.
    filled = [[*one.captions, *[one.captions[-1]] * 3][:3] for one in REFERENCES]
    streams = [list(stream) for stream in zip(*filled, strict=True)]
    assert found.bleu == pytest.approx(sacrebleu.corpus_bleu(texts, streams).score)
    assert found.loss is None
    assert found.error == pytest.approx(1 - found.bleu / 100)


def test_nothing_held_out_has_no_figures():
    found = compared([], [])
    assert (found.tokens, found.bleu, found.exact) == (0, None, None)
    assert found.error == float("inf")


def test_the_rules_say_how_it_was_searched():
    assert "greedily" in free_rules(1)
    assert "beam 5" in free_rules(5)


def test_captions_of_two_words_have_a_bleu():
    references = [told("a dog"), told("a cat")]
    right, wrong = (
        compared(written(*texts), references) for texts in (("a dog", "a cat"), ("x y",) * 2)
    )
    assert right.bleu == pytest.approx(100)
    assert right.error < wrong.error
