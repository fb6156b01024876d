"""Data and tiny runs that the tests of all commands share."""

import gzip
import random
from pathlib import Path

import pytest
from command_line import trained

from regard.runs.forecast import dry_report

WORDS = ("the", "a", "cat", "dog", "sat", "ran", "on", "under", "né", "straße", "猫", "“hi”", ".")


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _surroundings(cache, monkeypatch, tmp_path):
    """A cache of our own, a terminal's width, and an empty folder to stand in."""
    monkeypatch.setenv("REGARD_CACHE", str(cache))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    # The machine's peak is not measured for each run, which takes half a second.
    monkeypatch.setattr("regard.training.throughput._fastest_product", lambda device, kind: 1e11)
    # Nor is it told what each dry run would cost, which takes seconds; `foretells` undoes this.
    monkeypatch.setattr("regard.commands.train.dry_report", lambda made: None)


@pytest.fixture
def foretells(monkeypatch):
    """Dry runs tell what a run would cost."""
    monkeypatch.setattr("regard.commands.train.dry_report", dry_report)


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    """notes.txt, other.txt, and pairs in files `source` and `target` (each source reversed)."""
    folder, rng = tmp_path_factory.mktemp("data"), random.Random(0)

    def lines(count: int) -> list[str]:
        return [" ".join(rng.choices(WORDS, k=rng.randint(3, 8))) for _ in range(count)]

    (folder / "notes.txt").write_text("\n".join(lines(150)), encoding="utf-8")
    (folder / "notes.txt.gz").write_bytes(gzip.compress((folder / "notes.txt").read_bytes()))
    (folder / "other.txt").write_text("\n".join(lines(40)), encoding="utf-8")
    for name, count in (("", 120), ("2", 15)):
        sources = [line.replace("猫", "dog") for line in lines(count)]
        targets = [" ".join(reversed(line.split())) for line in sources]
        for side, texts in (("source", sources), ("target", targets)):
            (folder / f"{side}{name}").write_text("\n".join(texts) + "\n", encoding="utf-8")
    return folder


def _run(tmp_path_factory, cache, *arguments, **options) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(cache))
        trained(folder, *arguments, **options)
    return folder


@pytest.fixture(scope="session")
def decoder(tmp_path_factory, cache, data) -> Path:
    """bpe on notes.txt."""
    return _run(tmp_path_factory, cache, data / "notes.txt", "--model", "gpt2-tiny", steps=12)


@pytest.fixture(scope="session")
def words(tmp_path_factory, cache, data) -> Path:
    """Words of notes.txt."""
    model = ("--model", "llama-tiny", "--tokenizer", "word")
    return _run(tmp_path_factory, cache, data / "notes.txt", *model, steps=12)


@pytest.fixture(scope="session")
def encoder(tmp_path_factory, cache, data) -> Path:
    """Gaps in notes.txt."""
    return _run(tmp_path_factory, cache, data / "notes.txt", "--model", "bert-tiny", steps=12)


@pytest.fixture(scope="session")
def translator(tmp_path_factory, cache, data) -> Path:
    """Pairs, one vocabulary, named held-out files."""
    files = ("--pairs", data / "source", data / "target")
    held = ("--valid", data / "source2", data / "target2")
    model = ("--model", "t5-tiny", "--tokenizer", "word")
    return _run(tmp_path_factory, cache, *files, *held, *model, steps=20)


@pytest.fixture(scope="session")
def separate(tmp_path_factory, cache, data) -> Path:
    """Pairs with a vocabulary for each side."""
    files = ("--pairs", data / "source", data / "target")
    settings = ("tokenizer.shared=false",)
    return _run(tmp_path_factory, cache, *files, "--model", "marian-tiny", settings=settings)
