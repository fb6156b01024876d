"""What fuzzing found is read again: every reader returns, or says in one paragraph what is wrong.

`make fuzz` finds more; this needs no fuzzer.
"""

import corpus
import judging
import pytest
import seeds
import targets

from regard import RegardError

NAMES = list(targets.TARGETS)
READERS = [(name, slot) for name in NAMES for slot in range(len(targets.TARGETS[name]))]

# What of ours each reader must come to, with one of its seeds at least.
REACHED = {
    "texts": (
        "text.sources:_decoded",
        "text.sources:_texts",
        "text.sources:_decoded",
        "text.sources:_texts",
        "text.sources:_read",
        "commands.given:lines",
    ),
    "lists": (
        "data.pairs:_columns",
        "data.pairs:_object",
        "data.pairs:_aligned",
        "data.captions:_object",
        "data.captions:_columns",
        "inspection.word_questions:_lines",
        "inspection.alignment_errors:_gold",
    ),
    "images": ("data.images:_opened",) * 3,
    "settings": (
        "training.recipes:_read",
        "training.runs:config_for",
        "training.runs:config_for",
        "training.recipes:_value",
        "cli:_registry",
    ),
    "tokenizers": (*("text.tokenizer:recognise",) * 5, "training.vocabularies:_seal"),
    "tensors": (*("storage.tensors:_header",) * 3, "storage.tensors:_files"),
    "folders": ("interchange.huggingface:read_json", *("interchange.huggingface:_gather",) * 5),
    "counts": ("training.runs:table_of", *("interchange.arpa:_Reader._level",) * 2),
    "vectors": ("interchange.word_vectors:_Reader._gathered",) * 2,
    "kept": (
        "training.checkpoints:_checked",
        "training.checkpoints:read_json",
        "training.lock:_read",
        "data.tokens:Stock.sizes",
        "data.tokens:_check_numbers",
        "data.tokens:read_json",
        "cost.device:_grid",
        "comparison.measuring:well_formed",
    ),
    "logs": ("training.log:parsed",),
}


class PlantedError(Exception):
    """A fault that was put there."""


@pytest.fixture(scope="module", autouse=True)
def _scratch(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("FUZZ_FOLDER", str(tmp_path_factory.mktemp("fuzz")))
    patch.setattr(judging, "SLOW", 60.0)  # what is imported first takes seconds by itself
    yield
    patch.undo()


@pytest.mark.parametrize("name", NAMES)
def test_what_was_found_is_read_or_refused_in_one_paragraph(name):
    kept = corpus.load(name)
    assert kept["found"], "fuzz it: python tests/fuzz/fuzzer.py --keep NAME"
    for data in (*kept["mended"], *kept["found"]):
        judging.judge(name, data)


@pytest.mark.parametrize(("name", "slot"), READERS)
def test_an_empty_file_is_read_or_refused_in_one_paragraph(name, slot):
    judging.judge(name, bytes([64 + slot]))


@pytest.mark.parametrize(("name", "slot"), READERS)
def test_a_fault_in_what_a_reader_calls_is_found(name, slot, monkeypatch):
    inputs = [data for data in seeds.seeds(name) if data[0] % targets.SLOTS == slot]
    for data in inputs:
        judging.judge(name, data)
    monkeypatch.setattr(f"regard.{REACHED[name][slot].replace(':', '.')}", planted)
    found = [data for data in inputs if failed(name, data)]
    assert found


def planted(*given: object, **more: object) -> None:
    raise PlantedError("put there")


def failed(name: str, data: bytes) -> bool:
    try:
        judging.judge(name, data)
    except judging.FindingError as finding:
        return "PlantedError" in finding.what
    return False


UNFIT = {
    " ": "says nothing",
    "Traceback (most recent call last)": "says nothing",
    "a\x1b[31m": "control characters",
    "a\x9b": "control characters",
    "a\nb": "control characters",
    "a" * 3000: "too long",
    "a" + "\n  - b" * 50: "too long",
}


@pytest.mark.parametrize("message", UNFIT)
def test_a_message_that_is_no_short_paragraph_is_found(message, monkeypatch):
    def read(name, data, folder):
        raise RegardError(message)

    monkeypatch.setattr(judging, "spoken", str)  # as if the command line printed it as it is
    with pytest.raises(judging.FindingError, match=UNFIT[message]):
        judging.judge("texts", b"", read)


def test_a_message_with_a_few_problems_is_fit():
    assert not judging.unfit("a: 2 problems\n  - one\n  - two")


def test_what_takes_memory_or_time_is_found(monkeypatch):
    def read(name, data, folder):
        bytearray(1 << 20).count(0)

    monkeypatch.setattr(judging, "SLOW", 0.0)
    with pytest.raises(judging.FindingError, match="it took"):
        judging.judge("texts", b"", read)
    monkeypatch.undo()
    monkeypatch.setattr(judging, "_most", iter((0, judging.LARGE + 1)).__next__)
    with pytest.raises(judging.FindingError, match="MB"):
        judging.judge("texts", b"", read)


@pytest.mark.parametrize("name", NAMES)
def test_the_corpus_is_small_and_has_something_for_every_reader(name):
    kept = corpus.load(name)
    inputs = [*kept["mended"], *kept["found"]]
    assert len(kept["found"]) <= corpus.KEPT
    assert all(len(data) <= corpus.LONGEST for data in kept["found"])
    slots = {data[0] % targets.SLOTS % len(targets.TARGETS[name]) for data in inputs if data}
    assert slots == set(range(len(targets.TARGETS[name])))
