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
        "data.readers.files:_decoded",
        "data.readers.files:_texts",
        "data.readers.files:_decoded",
        "data.readers.files:_texts",
        "data.readers.files:_read",
        "commands.texts:lines",
    ),
    "lists": (
        "data.readers.pairs:_columns",
        "data.readers.pairs:_object",
        "data.readers.pairs:_aligned",
        "data.readers.captions:_object",
        "data.readers.captions:_columns",
        "inspection.word_questions:_lines",
        "metrics.alignment_errors:_gold",
    ),
    "images": ("data.readers.images:_opened",) * 3,
    "settings": (
        "runs.recipes:_read",
        "runs.stored_run:config_for",
        "runs.stored_run:config_for",
        "runs.recipes:_value",
        "cli:_registry",
    ),
    "tokenizers": (*("text.tokenizer:recognise",) * 5, "families.data.vocabularies:_seal"),
    "tensors": (*("storage.tensors:_header",) * 3, "storage.tensors:_files"),
    "folders": (
        "interchange.huggingface.folder:read_json",
        *("interchange.huggingface.folder:_gather",) * 5,
    ),
    "counts": ("families.counting.family:table_of", *("interchange.arpa:_ArpaReader._level",) * 2),
    "vectors": ("interchange.word_vectors:_VectorReader._gathered",) * 2,
    "kept": (
        "training.checkpoints.reading:_checked",
        "training.checkpoints.reading:read_json",
        "storage.lock:_read",
        "data.token_files:Stock.sizes",
        "data.token_files:_check_numbers",
        "data.token_files:read_json",
        "costs.device.ceilings:_grid",
        "comparison.measuring:well_formed",
    ),
    "logs": ("storage.event_log:parsed", "storage.status_file:LogStatus.take_best"),
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
