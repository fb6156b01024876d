"""Every reader of files, as a function of the bytes in the file and a folder to put them in.

A target is a few readers of one kind; the first byte of an input says which of them it is for. The
readers go on to what is done first with what was read: a table is looked into, a model asked.
"""

from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import data_readers
import good
import model_readers
import run_readers
from patching import Reader

SLOTS = 16  # readers of a target at most; "@" asks the first, "A" the second

TARGETS: Mapping[str, tuple[Reader, ...]] = {
    "texts": (
        data_readers.text("a.txt"),
        data_readers.text("a.jsonl"),
        data_readers.text("a.txt.gz", packed=True),
        data_readers.text("a.ndjson.gz", packed=True),
        data_readers.text("a.txt.gz"),
        data_readers.asked,
    ),
    "lists": (
        data_readers.pairs("a.tsv"),
        data_readers.pairs("a.jsonl"),
        data_readers.pairs("a.txt", "b.txt"),
        data_readers.captions("captions.jsonl"),
        data_readers.captions("captions.tsv"),
        data_readers.questions,
        data_readers.links,
    ),
    "images": (
        data_readers.image("a.png", repaired=True),
        data_readers.image("a.png"),
        data_readers.image("a.jpg"),
    ),
    "settings": (
        run_readers.recipe,
        run_readers.run_settings,
        run_readers.old_settings,
        run_readers.overrides,
        run_readers.command_line,
    ),
    "tokenizers": (
        data_readers.tokenizer(),
        data_readers.tokenizer("char"),
        data_readers.tokenizer("word"),
        data_readers.tokenizer("byte"),
        data_readers.tokenizer("bpe"),
        data_readers.kept_tokenizer,
    ),
    "tensors": (
        model_readers.weights,
        model_readers.header,
        model_readers.sealed_header,
        model_readers.index,
    ),
    "folders": (model_readers.config, *map(model_readers.family, good.FAMILIES)),
    "counts": (model_readers.table, model_readers.arpa_file, model_readers.packed_arpa),
    "vectors": (model_readers.vectors, model_readers.packed_vectors),
    "kept": (
        run_readers.checkpoint,
        run_readers.place,
        run_readers.locked,
        run_readers.cache("notes"),
        run_readers.cache("numbers"),
        run_readers.cache("raw"),
        run_readers.device,
        run_readers.figures,
    ),
    "logs": (run_readers.events, run_readers.statuses),
}


def read(name: str, data: bytes, folder: Path) -> None:
    """Give an input to the reader of a target that it is for."""
    readers = TARGETS[name]
    slot = data[0] % SLOTS if data else 0
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        readers[slot % len(readers)](data[1:], folder)
