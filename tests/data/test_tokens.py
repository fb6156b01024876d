"""Prepared tokens are those of each document encoded whole, however they are cut, kept and read."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import texts as texts_module
from regard.data import tokens as module
from regard.data.texts import Passage, Texts, gather
from regard.data.tokens import Tokens, in_order, prepare
from regard.errors import RegardError
from regard.text.learning import learn
from regard.text.sources import pieces
from regard.text.specials import BOS, EOS, UNK
from regard.text.tokenizer import KINDS, Tokenizer

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


@pytest.mark.parametrize("shard", [5, 64, 1 << 20])
@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_whole_documents_in_every_kind(kind, shard, tmp_path, monkeypatch):
    monkeypatch.setattr(texts_module, "pieces", lambda path: pieces(path, 10))
    how = tokenizer(kind)
    texts = gather(files(tmp_path / "texts", *DOCUMENTS))
    found = prepare(texts, how, cache=tmp_path / "cache", shard=shard)
    for part, documents in halves(DOCUMENTS).items():
        ids, numbers = twin(documents, how)
        tokens = found[part]
        assert len(tokens) == len(ids)
        assert tokens.read(0, len(ids)).tolist() == ids
        assert tokens.documents(0, len(ids)).tolist() == numbers
        assert tokens.starts.tolist() == [i for i, token in enumerate(ids) if token == BOS]
        assert tokens.stock.documents == len(documents)
        assert tokens.stock.bytes == sum(len(text.encode()) for text in documents)
        assert tokens.stock.unknown == ids.count(UNK)
        assert tokens.stock.vocabulary == len(how)
        shards = list((tmp_path / "cache").glob(f"tokens-*/{part}/tokens-*.bin"))
        assert len(shards) == -(-len(ids) // shard)
    assert found["train"].stock.unknown == 0 or kind in ("char", "word")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory) -> tuple[Tokens, list[int], list[int]]:
    folder = tmp_path_factory.mktemp("sharded")
    how = tokenizer("byte")
    texts = gather(files(folder / "texts", *DOCUMENTS), held_out=0.0)
    found = prepare(texts, how, cache=folder / "cache", shard=16)["train"]
    return found, *twin(DOCUMENTS, how)


@given(st.integers(0, 470), st.integers(0, 470))
def test_a_stretch_is_read_across_shards_and_ends_with_the_stream(sharded, start, size):
    tokens, ids, numbers = sharded
    found = tokens.read(start, start + size)
    assert found.dtype == np.int64
    assert found.tolist() == ids[start : start + size]
    stop = min(start + size, len(ids))
    if start < stop:
        assert tokens.documents(start, stop).tolist() == numbers[start:stop]


def test_documents_are_told_at_every_edge(sharded):
    tokens, _, numbers = sharded
    for start in range(len(numbers)):
        for stop in range(start + 1, min(start + 5, len(numbers)) + 1):
            assert tokens.documents(start, stop).tolist() == numbers[start:stop]


def test_places_behind_the_end_belong_to_the_last_document(sharded):
    tokens, ids, numbers = sharded
    assert tokens.documents(len(ids) - 2, len(ids) + 3).tolist() == [numbers[-1]] * 5


@pytest.mark.parametrize(("words", "size"), [(60_000, 2), (65_531, 2), (65_532, 4)])
def test_ids_take_two_bytes_up_to_65536_tokens_and_four_above(words, size, tmp_path):
    text = " ".join(f"w{n}" for n in range(words))
    how = learn("word", [text], 1 << 20)
    assert len(how) == words + 5
    found = prepare(gather(files(tmp_path / "t", text), held_out=0.0), how, cache=tmp_path / "c")
    assert np.array_equal(found["train"].read(1, words + 1), how.encode(text))
    assert found["train"].read(1, words + 1).max() == words + 4
    (shard,) = (tmp_path / "c").glob("tokens-*/train/tokens-00000.bin")
    assert shard.stat().st_size == size * (words + 2)


def test_counts_are_exact_for_broken_and_unknown_text(tmp_path):
    how = learn("char", ["ab"])
    content = "aéb".encode() + b"\xff" + "中a".encode()
    texts = gather(files(tmp_path / "texts", content), held_out=0.0)
    stock = prepare(texts, how, cache=tmp_path / "cache")["train"].stock
    assert (stock.bytes, stock.unknown, stock.tokens) == (len(content), 3, 8)


def test_a_part_with_nothing_in_it_is_there_and_empty(tmp_path):
    texts = gather(files(tmp_path / "texts", "some text"), held_out=0.0)
    for _ in range(2):  # made, then found
        valid = prepare(texts, tokenizer("byte"), cache=tmp_path / "cache")["valid"]
        assert len(valid) == 0
        assert valid.stock.documents == 0
        assert valid.read(0, 10).tolist() == []
        assert valid.read(0, 10).dtype == np.int64


def test_many_documents_in_one_file_are_told_apart(tmp_path, monkeypatch):
    documents = [f"document {n}" * (n % 4 + 1) for n in range(100)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in documents))
    how = tokenizer("byte")
    texts = gather([path])
    parts: dict[str, list[str]] = {"train": [], "valid": []}
    for part, text, last in texts.passages():
        assert last
        parts[part].append(text)
    found = prepare(texts, how, cache=tmp_path / "cache", shard=100)
    for part, of_part in parts.items():
        ids, numbers = twin(of_part, how)
        assert found[part].read(0, len(ids)).tolist() == ids
        assert found[part].documents(0, len(ids)).tolist() == numbers


# --- the cache -------------------------------------------------------------------------------


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


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_told_in_one_sentence(what, tmp_path):
    texts = gather(files(tmp_path / "texts", *DOCUMENTS))
    how, cache = tokenizer("byte"), tmp_path / "cache"
    prepare(texts, how, cache=cache, shard=50)
    (folder,) = cache.iterdir()
    name, harm = DAMAGE[what]
    harm(folder / name)
    with pytest.raises(RegardError) as told:
        prepare(texts, how, cache=cache, shard=50)
    assert f"is damaged; delete {folder} and" in str(told.value)
    assert "\n" not in str(told.value)
    shutil.rmtree(folder)  # as told
    assert len(prepare(texts, how, cache=cache, shard=50)["train"]) > 0


def test_odd_numbers_in_the_notes_are_damage_too(tmp_path):
    texts = gather(files(tmp_path / "texts", *DOCUMENTS))
    prepare(texts, tokenizer("byte"), cache=tmp_path / "cache")
    (meta,) = (tmp_path / "cache").glob("*/train/meta.json")
    good = json.loads(meta.read_text())
    for changes in ({"shard": 0}, {"format": 99}, {"tokens": 1}, {"documents": 9}, {"tokens": "?"}):
        meta.write_text(json.dumps({**good, **changes}))
        with pytest.raises(RegardError, match="damaged"):
            Tokens(meta.parent)


def test_a_cache_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    texts = gather(files(tmp_path / "texts", *DOCUMENTS))
    with pytest.raises(RegardError, match=r"cannot keep prepared data in .* set REGARD_CACHE"):
        prepare(texts, tokenizer("byte"), cache=tmp_path / "file" / "cache")


def test_a_full_disk_is_told_and_nothing_is_left(tmp_path, monkeypatch):
    def full(*args) -> None:
        raise OSError(28, "No space left on device")

    texts = gather(files(tmp_path / "texts", *DOCUMENTS))
    monkeypatch.setattr(module._Writer, "_append", full)
    with pytest.raises(RegardError, match="No space left on device"):
        prepare(texts, tokenizer("byte"), cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_cache_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "named"))
    assert module.cache_folder() == tmp_path / "named"
    monkeypatch.delenv("REGARD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert module.cache_folder() == tmp_path / "regard"


# --- the window ------------------------------------------------------------------------------


def test_only_a_few_passages_are_under_way_at_once(monkeypatch):
    monkeypatch.setattr(module.os, "cpu_count", lambda: 3)
    begun = ended = most = 0

    def passages():
        nonlocal begun, most
        for number in range(200):
            begun += 1
            most = max(most, begun - ended)
            yield Passage("train", str(number), True)

    for number, (passage, encoded) in enumerate(in_order(lambda text: text, passages())):
        assert passage.text == encoded == str(number)  # in order, none left out
        ended += 1
    assert ended == 200
    assert 3 <= most <= 8


def test_what_goes_wrong_while_reading_or_encoding_is_heard(tmp_path):
    def passages():
        yield Passage("train", "a", True)
        raise RegardError("the file is gone")

    with pytest.raises(RegardError, match="the file is gone"):
        list(in_order(lambda text: text, passages()))
    with pytest.raises(ZeroDivisionError):
        list(in_order(lambda text: 1 // 0, iter([Passage("train", "a", True)])))


def test_progress_is_told_in_characters_of_all_parts(tmp_path):
    told: list[int] = []
    texts: Texts = gather(files(tmp_path / "texts", *DOCUMENTS))
    prepare(texts, tokenizer("byte"), told.append, cache=tmp_path / "cache")
    assert told == sorted(told)
    assert told[-1] == sum(map(len, DOCUMENTS))
