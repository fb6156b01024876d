"""What was prepared is found again; what is half there or damaged is never believed."""

import errno
import itertools
import json
import os
import pwd
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small_documents import DOCUMENTS, files, halves, tokenizer, twin

from regard.data import token_files as module
from regard.data.readers.texts import gather
from regard.data.token_files import Tokens, prepare
from regard.errors import RegardError
from regard.storage import writing as storage
from regard.text.tokenizer import Tokenizer


class Counting(Tokenizer):
    """Counts what it encodes."""

    texts: int = 0

    def encode(self, text):
        self.texts += bool(text)
        return super().encode(text)


def test_what_was_prepared_is_not_encoded_or_read_again(tmp_path):
    how = Counting(tokenizer("byte").vocabulary)
    paths = files(tmp_path / "texts", *DOCUMENTS)
    texts = gather(paths)
    first = prepare(texts, how, cache=tmp_path / "cache")
    encoded = how.texts
    assert encoded >= len(DOCUMENTS)
    for path in paths:
        path.unlink()
    again = prepare(texts, how, cache=tmp_path / "cache")
    assert how.texts == encoded
    for part in ("train", "valid"):
        assert np.array_equal(first[part].read(0, 10**6), again[part].read(0, 10**6))


def test_another_text_tokenizer_division_or_shard_is_prepared_anew(tmp_path):
    cache = tmp_path / "cache"

    def folders(documents, how, share=0.1, shard=1 << 20) -> int:
        texts = gather(files(tmp_path / "texts", *documents), held_out=share)
        prepare(texts, how, cache=cache, shard=shard)
        return len(list(cache.iterdir()))

    how, changed = tokenizer("byte"), [*DOCUMENTS[:-1], DOCUMENTS[-1].replace("more", "less")]
    assert folders(DOCUMENTS, how) == 1
    assert folders(DOCUMENTS, how) == 1
    assert folders(changed, how) == 2
    assert folders(DOCUMENTS, tokenizer("bpe")) == 3
    assert folders(DOCUMENTS, how, share=0.2) == 4
    assert folders(DOCUMENTS, how, shard=7) == 5
    assert folders(DOCUMENTS, how) == 5


class Killed(BaseException):
    """What a process ends by, not an error that is handled."""


@pytest.mark.parametrize("left", [False, True])
def test_a_preparation_cut_off_is_not_taken_for_whole(left, tmp_path, monkeypatch):
    texts = gather(files(tmp_path / "texts", *DOCUMENTS))
    how, cache = tokenizer("byte"), tmp_path / "cache"

    class Dying(Tokenizer):
        def encode(self, text):
            if text == halves(DOCUMENTS)["train"][-1]:
                raise Killed
            return super().encode(text)

    if left:  # as after SIGKILL or a power cut: nobody cleans up
        monkeypatch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)
    with pytest.raises(Killed):
        prepare(texts, Dying(how.vocabulary), cache=cache)
    assert len(list(cache.iterdir())) == left
    found = prepare(texts, how, cache=cache)
    for part, documents in halves(DOCUMENTS).items():
        assert found[part].read(0, 10**6).tolist() == twin(documents, how)[0]


def _cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


DAMAGE = {
    "no meta": ("train/meta.json", Path.unlink),
    "torn meta": ("valid/meta.json", _cut_short),
    "odd meta": ("train/meta.json", lambda path: path.write_text('{"tokens": 3}')),
    "listed meta": ("train/meta.json", lambda path: path.write_text("[]")),
    "no starts": ("train/documents.bin", Path.unlink),
    "torn starts": ("train/documents.bin", _cut_short),
    "emptied starts": ("train/documents.bin", lambda path: path.write_bytes(b"")),
    "no shard": ("train/tokens-00001.bin", Path.unlink),
    "torn shard": ("train/tokens-00001.bin", _cut_short),
    "emptied shard": ("train/tokens-00001.bin", lambda path: path.write_bytes(b"")),
    "long shard": ("train/tokens-00000.bin", lambda path: path.write_bytes(bytes(1000))),
    "no part": ("valid", shutil.rmtree),
}


def prepared(folder: Path) -> tuple[Path, Callable[[], dict[str, list[int]]]]:
    """Some prepared data, and how to prepare it again (only its ids)."""
    texts, how = gather(files(folder / "texts", *DOCUMENTS)), tokenizer("byte")

    def again() -> dict[str, list[int]]:
        found = prepare(texts, how, cache=folder / "cache", shard=50)
        return {part: tokens.read(0, 10**6).tolist() for part, tokens in found.items()}

    again()
    (made,) = (folder / "cache").iterdir()
    return made, again


def check_made_again(folder: Path, name: str, again: Callable[[], dict[str, list[int]]]) -> None:
    """What is in the folder is refused by whom it is given, and made again by `prepare`."""
    with pytest.raises(RegardError) as told:
        Tokens(folder / name.split("/")[0])
    assert f"is damaged; delete {folder} and" in str(told.value)
    assert "\n" not in str(told.value)
    how = tokenizer("byte")
    assert again() == {part: twin(texts, how)[0] for part, texts in halves(DOCUMENTS).items()}
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    Tokens(folder / name.split("/")[0])


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_data_is_told_and_made_again(what, tmp_path):
    folder, again = prepared(tmp_path)
    name, harm = DAMAGE[what]
    harm(folder / name)
    check_made_again(folder, name, again)


@pytest.mark.parametrize("name", ["meta.json", "documents.bin", "tokens-00001.bin"])
def test_a_file_cut_off_anywhere_is_never_believed(name, tmp_path):
    folder, again = prepared(tmp_path)
    size = (folder / "train" / name).stat().st_size
    last = size - (2 if name == "meta.json" else 1)  # a newline stands behind the last brace
    for kept in {0, 1, size // 3, size // 2, size - 8, last}:
        os.truncate(folder / "train" / name, kept)
        check_made_again(folder, f"train/{name}", again)


@pytest.mark.parametrize("name", ["meta.json", "documents.bin", "tokens-00001.bin"])
def test_a_flipped_bit_is_never_believed(name, tmp_path, monkeypatch):
    folder, again = prepared(tmp_path)
    path, dice = folder / "train" / name, random.Random(0)
    whole = path.read_bytes()
    for _ in range(12):
        place, bit = dice.randrange(len(whole)), dice.randrange(8)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
        if name == "meta.json" and json.loads(whole) == _read_if_whole(path):
            continue  # a blank became another
        check_made_again(folder, f"train/{name}", again)
    path.write_bytes(whole[:-1] + b"!")
    monkeypatch.setattr(module, "CHECKED", 10)  # of more, only the sizes are looked at
    if name != "meta.json":
        Tokens(folder / "train")


def test_numbers_of_another_vocabulary_are_made_again_though_their_checksums_fit(tmp_path):
    folder, again = prepared(tmp_path)
    path = folder / "train" / "meta.json"
    written = path.read_bytes()
    stock = module.Stock(**json.loads(written))
    stock.vocabulary += 1
    stock.checksums[""] = stock.seal()
    path.write_text(json.dumps(vars(stock)))
    Tokens(path.parent)
    assert again() == {
        part: twin(texts, tokenizer("byte"))[0] for part, texts in halves(DOCUMENTS).items()
    }
    assert path.read_bytes() == written


def _read_if_whole(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        return None


def test_what_a_killed_preparation_left_is_swept_by_the_next(tmp_path):
    left = storage._beside(tmp_path / "cache" / "tokens-1", "partial")
    left = left.with_name(left.name.replace(f"-{os.getpid()}-", f"-{2**31 - 1}-"))  # nobody's
    left.mkdir(parents=True)
    prepared(tmp_path)
    assert not left.exists()


def test_odd_numbers_in_the_notes_are_damage_too(tmp_path):
    texts = gather(files(tmp_path / "texts", *DOCUMENTS))
    prepare(texts, tokenizer("byte"), cache=tmp_path / "cache")
    (meta,) = (tmp_path / "cache").glob("*/train/meta.json")
    good = json.loads(meta.read_text())
    odd = ({"shard": 0}, {"format": 99}, {"tokens": 1}, {"documents": 9}, {"tokens": "?"})
    # no file shows these
    silent = ({"bytes": 1}, {"unknown": 9}, {"own": 1}, {"checksums": {}}, {"checksums": 3})
    for changes in (*odd, *silent):
        meta.write_text(json.dumps({**good, **changes}))
        with pytest.raises(RegardError, match="damaged"):
            Tokens(meta.parent)


def test_a_cache_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    texts = gather(files(tmp_path / "texts", *DOCUMENTS))
    with pytest.raises(RegardError, match=r"cannot keep prepared data in .* set REGARD_CACHE"):
        prepare(texts, tokenizer("byte"), cache=tmp_path / "file" / "cache")


def test_a_full_disk_is_told_with_about_what_is_needed_and_nothing_is_left(tmp_path, monkeypatch):
    documents = ["some words of a text, " * 100] * 10
    texts, how = gather(files(tmp_path / "texts", *documents)), tokenizer("byte")
    needed = 2 * sum(len(text) for text in documents)
    free = shutil._ntuple_diskusage(0, 0, 7000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    for number in range(0, 24, 3):
        calls = itertools.count()

        def full(self, *args, calls=calls, number=number, real=module._Writer._write) -> None:
            if next(calls) == number:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(module._Writer, "_write", full)
            with pytest.raises(RegardError, match="set REGARD_CACHE to a folder with room") as told:
                prepare(texts, how, cache=tmp_path / "cache")
        said = re.search(r"([\d.]+) kB are needed and 7\.0 kB are free", str(told.value))
        assert 0.9 * needed < float(said[1]) * 1000 < 1.2 * needed
        assert list((tmp_path / "cache").iterdir()) == []
    assert len(prepare(texts, how, cache=tmp_path / "cache")["train"]) > 0


def test_the_cache_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "named"))
    assert module.cache_folder() == tmp_path / "named"
    monkeypatch.delenv("REGARD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert module.cache_folder() == tmp_path / "regard"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert module.cache_folder() == tmp_path / ".cache" / "regard"


def test_without_a_home_folder_a_cache_must_be_named(monkeypatch):
    """As in a container that any user may run: no $HOME, and no entry in /etc/passwd."""
    for name in ("REGARD_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    with pytest.raises(RegardError, match="set REGARD_CACHE to a folder with room"):
        module.cache_folder()
