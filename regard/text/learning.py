"""Learning a tokenizer from a stream of texts."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from regard.errors import RegardError
from regard.text.bytelevel import CHARACTERS
from regard.text.cutting import cut
from regard.text.invalid_utf8 import parts, replace_invalid_utf8
from regard.text.specials import SPECIALS
from regard.text.tokenised import beginning, looks_tokenised
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import BYTES, Kind, Vocabulary, check_kind
from regard.text.words import Finder, finder

MOST = 50_000  # of kind word if nothing is asked for
# The library takes 256 texts at a time; short ones keep that to a few megabytes.
HANDFUL = 1 << 14
SEEN_TWICE = 2  # a pair met once is no regularity: merging it learns a word by heart

Advance = Callable[[int], None]


ALL = 1 << 24  # tokens: more words than any text has


def vocabulary_for(kind: Kind, characters: int, all_words: bool = False) -> int:
    """How many tokens a text of this size can teach: BPE's merges need examples."""
    if kind == "word" and all_words:
        return ALL
    if kind != "bpe":
        return 0
    vocabulary = 512
    while vocabulary < 32768 and vocabulary * 512 < characters:
        vocabulary *= 2
    return vocabulary


def learn(
    kind: Kind,
    texts: Iterable[str],
    vocabulary: int = 0,
    progress: Advance | None = None,
    *,
    min_frequency: int = 0,
    tokenised: bool | None = None,
    lines: bool = False,
) -> Tokenizer:
    """A tokenizer of at most `vocabulary` tokens, specials included; the same for the same texts.

    `vocabulary` 0 means every character for kind char and up to 50,000 words for kind word, is
    not enough for kind bpe, and is of no matter for kind byte. `progress` is told the characters
    read so far. A text may be a document or a piece of one.

    Kinds char and word leave out what is seen fewer than `min_frequency` times. For kind word
    `tokenised` says whether words stand between blanks already; None: as the beginning of the
    texts looks. With `lines`, each line will be encoded by itself, so that no token has a newline.
    """
    check_kind(kind)
    _check_vocabulary(kind, vocabulary)
    if min_frequency < 0:
        raise RegardError(
            f"tokens cannot be seen fewer than 0 times: min_frequency is {min_frequency}"
        )
    if kind != "word":
        tokenised = False
    elif tokenised is None:
        head, texts = beginning(texts)
        tokenised = looks_tokenised(head)
    read = _Read(texts, progress)
    if kind == "bpe":
        learned = _pairs(read, vocabulary, lines)
    elif kind == "byte":
        for _ in read:
            pass
        learned = Vocabulary("byte", (*SPECIALS, *CHARACTERS))
    else:
        find = finder(tokenised) if kind == "word" else list
        ranked = _most_frequent(read, find, min_frequency, lines)
        most = vocabulary or (MOST if kind == "word" else len(ranked) + len(SPECIALS))
        tokens = (*SPECIALS, *ranked[: most - len(SPECIALS)])
        learned = Vocabulary(kind, tokens, tokenised=tokenised)
    if not read.characters:
        raise RegardError("a tokenizer cannot be learned from an empty text")
    return Tokenizer(learned)


class _Read:
    """The texts as they pass by."""

    def __init__(self, texts: Iterable[str], progress: Advance | None) -> None:
        self.texts, self.progress = texts, progress
        self.characters = 0

    def __iter__(self) -> Iterator[str]:
        for text in self.texts:
            yield text
            self.characters += len(text)
            if self.progress:
                self.progress(self.characters)


def _check_vocabulary(kind: Kind, vocabulary: int) -> None:
    if kind == "bpe" and vocabulary < BYTES:
        raise RegardError(
            f"kind bpe needs a vocabulary of at least {BYTES} "
            f"({len(SPECIALS)} specials and 256 bytes), not {vocabulary}"
        )
    if kind in ("char", "word") and vocabulary and vocabulary <= len(SPECIALS):
        raise RegardError(
            f"kind {kind} needs a vocabulary of more than the {len(SPECIALS)} specials, "
            f"not {vocabulary}; 0 means all"
        )


def _most_frequent(
    texts: Iterable[str], find: Finder, min_frequency: int, lines: bool
) -> list[str]:
    """Characters or words, the frequent first, equally frequent ones by code point."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(find(replace_invalid_utf8(text.replace("\r\n", "\n") if lines else text)))
    del counts["<unk>"]  # it is a special already
    if lines:
        del counts["\n"]
    kept = (token for token, count in counts.items() if count >= min_frequency)
    return sorted(kept, key=lambda token: (-counts[token], token))


def _pairs(texts: Iterable[str], vocabulary: int, lines: bool) -> Vocabulary:
    """Byte pairs merged as `tokenizers` learns it; the ids are specials, bytes, then merges."""
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=SEEN_TWICE,
        special_tokens=list(SPECIALS),
        initial_alphabet=CHARACTERS,
        show_progress=False,
    )
    _interruptible(
        _handfuls(texts, lines), lambda taken: learner.train_from_iterator(taken, trainer)
    )
    found = json.loads(learner.to_str())["model"]["merges"]
    merges = tuple((left, right) for left, right in found)
    formed = (left + right for left, right in merges)
    return Vocabulary("bpe", (*SPECIALS, *CHARACTERS, *formed), merges)


def _interruptible(texts: Iterable[str], work: Callable[[Iterator[str]], None]) -> None:
    """Let the library work on some texts so that a signal can end it.

    Python hears signals on this thread only, which a long call would keep busy; so the call gets a
    thread of its own, and the texts break off when this one is left. The thread is waited for: a
    process that ends while one is inside the library is aborted.
    """
    raised: list[BaseException] = []
    left, done = threading.Event(), threading.Event()

    def until_left() -> Iterator[str]:
        for text in texts:
            if left.is_set():
                raise InterruptedError
            yield text

    def worked() -> None:
        try:
            work(until_left())
        except BaseException as error:
            raised.append(error)
        finally:
            done.set()

    threading.Thread(target=worked).start()
    try:
        while not done.wait(0.05):
            pass
    finally:
        left.set()
        done.wait()
    if raised:
        raise raised[0]


def _handfuls(texts: Iterable[str], lines: bool) -> Iterator[str]:
    """Valid stretches of the texts, or of their lines, cut where it makes no difference."""
    for text in texts:
        for line in text.replace("\r\n", "\n").split("\n") if lines else [text]:
            for part in parts(line):
                if isinstance(part, str):
                    yield from (piece.text for piece in cut([part], HANDFUL))
