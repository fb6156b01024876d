"""Minimum Bayes risk (M21): of many samples, the one that agrees best with all the others.

The most probable text is often an odd one (empty, or cut short). The samples together stand for
what the model means; the text with the highest expected utility against them is its safest answer.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sacrebleu.metrics import BLEU, CHRF

from regard.errors import RegardError, nearest

Utility = Callable[[str, str], float]  # of a text, if the other is right; 0 to 100


@dataclass(frozen=True)
class ChosenSample:
    """Which sample it is."""

    index: int  # the first of equals
    utilities: tuple[float, ...]  # of every sample: the mean against all the others


def least_risk(texts: Sequence[str], utility: str = "chrf") -> ChosenSample:
    """The sample with the highest mean utility ("chrf" or "bleu") against all the others.

    A text that was drawn more often counts as often. One sample alone is held against itself.
    """
    if utility not in UTILITIES:
        raise RegardError(f"no utility is called {utility!r}; {nearest(str(utility), UTILITIES)}")
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise RegardError(f"least_risk chooses from a list of texts, not {texts!r:.80}")
    if not texts:
        raise RegardError("there are no samples to choose from; draw at least one")
    worth = UTILITIES[utility]()
    drawn = Counter(texts)
    expected = {text: _expected(text, drawn, worth) for text in drawn}
    best = max(expected.values())
    index = next(i for i, text in enumerate(texts) if expected[text] == best)
    return ChosenSample(index, tuple(expected[text] for text in texts))


def _expected(text: str, drawn: Counter[str], worth: Utility) -> float:
    """The mean utility of a text that was drawn against all the others that were."""
    others = Counter(drawn)
    if len(drawn) > 1 or drawn[text] > 1:
        others[text] -= 1
    total = sum(count * worth(text, other) for other, count in others.items() if count)
    return total / others.total()


def _chrf() -> Utility:
    metric = CHRF()
    return lambda text, right: float(metric.sentence_score(text, [right]).score)


def _bleu() -> Utility:
    metric = BLEU(effective_order=True)  # a text of three words has no 4-grams to miss
    return lambda text, right: float(metric.sentence_score(text, [right]).score)


UTILITIES: dict[str, Callable[[], Utility]] = {"chrf": _chrf, "bleu": _bleu}
