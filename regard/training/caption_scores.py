"""How good captions are: always by what a model writes, never by what it would have written (M8).

A loss knows one caption of each picture, and a model that has learned all of them is as right with
another. So held-out pictures are described freely, and the captions compared with all that people
said.
"""

from collections.abc import Iterable, Sequence

from sacrebleu.metrics import BLEU

from regard.data.batch import Batch
from regard.data.feeds.images import ImageFeed
from regard.data.readers.captions import Captioned
from regard.decoding.captions import Caption, captioned
from regard.decoding.settings import Beam
from regard.decoding.text_model import TextModel
from regard.metrics.scores import Scores
from regard.training.optimization.precision import Precision, computing
from regard.training.validation import GREEDY, at_rest

RULES = (
    "what the model wrote for each image, {how}, against all its captions; exact: it is one of "
    "them to the letter"
)


def described(
    speaker: TextModel,
    batches: Iterable[Batch],
    beam: Beam = GREEDY,
    *,
    precision: Precision = "float32",
) -> list[Caption]:
    """What a model writes about the pictures of each batch, in order."""
    found = []
    with at_rest(speaker.module), computing(precision, speaker.device):
        for batch in batches:
            assert batch.source is not None
            best = captioned(speaker, batch.source, beam)
            found += [several[0] for several in best]
    return found


def freely(
    speaker: TextModel, feed: ImageFeed, rows: int, precision: Precision = "float32"
) -> Scores:
    """The figures of what is held out, written greedily; nothing of them if there is nothing."""
    written = described(speaker, feed.held_out(rows), precision=precision)
    return compared(written, feed.told)


def compared(written: Sequence[Caption], told: Sequence[Captioned]) -> Scores:
    """BLEU-4 and exact match of captions with all that was said of their images."""
    if not told:
        return Scores(None, None, 0)
    most = max(len(one.captions) for one in told)
    references = [
        [one.captions[which] if which < len(one.captions) else None for one in told]
        for which in range(most)
    ]
    bleu = BLEU(tokenize="13a", effective_order=True)  # BLEU-2 where no caption has three words
    texts = [one.text for one in written]
    found = bleu.corpus_score(texts, references)  # type: ignore[arg-type]  # None: there is none
    right = sum(text in one.captions for text, one in zip(texts, told, strict=True))
    return Scores(
        None,
        None,
        sum(len(one.ids) + 1 for one in written),
        bleu=float(found.score),
        exact=right / len(told),
        signature=f"BLEU {bleu.get_signature()}",
    )


def free_rules(beams: int) -> str:
    """How these figures were counted."""
    return RULES.format(how=f"beam {beams}" if beams > 1 else "greedily")
