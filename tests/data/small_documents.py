"""A few documents in files, and their ids worked out one document at a time."""

from pathlib import Path

from regard.text.learning import learn
from regard.text.specials import BOS, EOS
from regard.text.tokenizer import Tokenizer

DOCUMENTS = [
    "the cat sat on the mat, and the dog's mat was the cat's\n" * 3,
    "  one\n\n two   three\r\nfour-five 1234 Straße 中文 \t",
    "x",
    "words and words and more words " * 7,
]


def files(folder: Path, *contents: str | bytes) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number:04}.txt" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return paths


def tokenizer(kind: str) -> Tokenizer:
    return learn(kind, DOCUMENTS[:1] * 3, 280 if kind == "bpe" else 0)


def halves(documents: list[str], share: float = 0.1) -> dict[str, list[str]]:
    """The parts of a few documents, by the rule."""
    bounds = [int(len(text) * (1 - share)) for text in documents]
    return {
        "train": [t[:b] for t, b in zip(documents, bounds, strict=True) if b],
        "valid": [t[b:] for t, b in zip(documents, bounds, strict=True) if b < len(t)],
    }


def twin(documents: list[str], how: Tokenizer) -> tuple[list[int], list[int]]:
    """The ids of whole documents one after another, and the number of each id's document."""
    ids: list[int] = []
    numbers: list[int] = []
    for number, text in enumerate(documents):
        row = [BOS, *how.encode(text).tolist(), EOS]
        ids += row
        numbers += [number] * len(row)
    return ids, numbers
