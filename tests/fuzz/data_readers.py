"""Readers of data: texts, lists of lines, images, tokenizers."""

import gzip
import struct
import zlib
from pathlib import Path

import good
from patching import Reader, patched, put

from regard.commands.texts import given_texts
from regard.data.feeds.labels import check_labels
from regard.data.readers.captions import encode_captions, gather_captions
from regard.data.readers.files import find
from regard.data.readers.images import examined, read_image, upright_size
from regard.data.readers.pairs import encode_pairs, gather_pairs
from regard.data.readers.texts import gather
from regard.families.data import vocabularies
from regard.inspection.word_questions import evaluate_analogies, evaluate_similarity, is_questions
from regard.metrics.alignment_errors import read_gold
from regard.text.tokenizer import Tokenizer

WEIGHTS = "model.safetensors"

# Texts


def text(name: str, packed: bool = False) -> Reader:
    """A text to train on, from its bytes to its tokens."""

    def read(data: bytes, folder: Path) -> None:
        path = put(folder / name, gzip.compress(data, 1, mtime=0) if packed else data)
        texts = gather([path], held_out=0.3)
        for passage in texts.passages():
            good.tokenizer("bpe").encode_lines(passage.text)
        list(texts.texts("train", 50))

    return read


def asked(data: bytes, folder: Path) -> None:
    """Texts that a run is asked about, a line each."""
    for line in given_texts((), str(put(folder / "asked.txt", data))):
        good.tokenizer().encode(line)


def pairs(*names: str) -> Reader:
    """Pairs in one file, or in two that a NUL parts here."""

    def read(data: bytes, folder: Path) -> None:
        parts = data.split(b"\0", 1) if len(names) == 2 else [data]
        paths = [put(folder / n, part) for n, part in zip(names, [*parts, b""], strict=False)]
        found = gather_pairs(paths, held_out=0.0)
        encoded = encode_pairs(found.train, *[good.tokenizer("word")] * 2, longest=50, ratio=9.0)
        check_labels(encoded, "pair")

    return read


def captions(name: str) -> Reader:
    """A list of captions, of which one image is there."""

    def read(data: bytes, folder: Path) -> None:
        put(folder / "a.png", good.picture("PNG"))
        found = gather_captions(put(folder / name, data), held_out=0.0)
        encode_captions(found.train, good.tokenizer())
        assert found.digest

    return read


def questions(data: bytes, folder: Path) -> None:
    path = put(folder / "questions.txt", data)
    find([path])
    (evaluate_analogies if is_questions(path) else evaluate_similarity)(good.words(), path)


def links(data: bytes, folder: Path) -> None:
    read_gold(put(folder / "links.txt", data), [(2, 3)] * (data.count(b"\n") or 1))


# Images


def image(name: str, repaired: bool = False) -> Reader:
    def read(data: bytes, folder: Path) -> None:
        path = put(folder / name, whole_png(data) if repaired else data)
        examined(path)
        upright_size(path)
        assert read_image(path, 16).shape == (16, 16, 3)

    return read


def whole_png(data: bytes) -> bytes:
    """The chunks of a PNG file, each with the checksum that belongs to it."""
    found, at = data[:8], 8
    while at + 12 <= len(data):
        size = min(struct.unpack(">I", data[at : at + 4])[0], len(data) - at - 12)
        chunk = data[at + 4 : at + 8 + size]
        found += struct.pack(">I", size) + chunk + struct.pack(">I", zlib.crc32(chunk))
        at += size + 12
    return found


# Tokenizers


def tokenizer(kind: str = "") -> Reader:
    """A tokenizer.json as it stands, or a good one of a kind with changes."""

    def read(data: bytes, folder: Path) -> None:
        content = patched(good.spelled(kind), data) if kind else data
        found = Tokenizer.load(put(folder / "tokenizer.json", content))
        ids = found.encode("a bad cab\n\udcff \u0301€")
        found.encode_lines("a\r\n\nb")
        found.pieces(range(len(found)))
        found.behind("a", int(ids[0])) if len(ids) else None
        assert found.decode(ids) is not None
        assert Tokenizer.load(put(folder / "again.json", found.spelled().encode())).fingerprint

    return read


def kept_tokenizer(data: bytes, folder: Path) -> None:
    """A tokenizer in the cache, and its seal behind the first newline."""
    seal, _, content = data.partition(b"\n")
    put(folder / "kept.seal", seal)
    vocabularies._known(put(folder / "kept.json", patched(good.spelled("char"), content)))
