"""Prepared tokens are those of each document encoded whole, however they are cut, kept and read."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_documents import DOCUMENTS, files, halves, tokenizer, twin

from regard.data import token_files as module
from regard.data.readers import texts as texts_module
from regard.data.readers.files import pieces
from regard.data.readers.texts import Passage, Texts, gather
from regard.data.token_files import Tokens, in_order, prepare
from regard.errors import RegardError
from regard.text.learning import learn
from regard.text.specials import BOS, UNK
from regard.text.tokenizer import KINDS


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
    rows = tokens.rows(np.array([start, 0, start]), size + 1, -1)
    for row, first in zip(rows, (start, 0, start), strict=True):
        there = tokens.read(first, first + size + 1)
        assert row.tolist() == [*there.tolist(), *[-1] * (size + 1 - len(there))]
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


@pytest.mark.parametrize("lines", [False, True])
def test_the_texts_own_unknown_words_are_counted_apart(tmp_path, lines):
    text = "one <unk> two\n<unk> three <unk>\n"
    texts = gather(files(tmp_path / "texts", text), held_out=0.0)
    words = learn("word", ["one two\n"])
    stock = prepare(texts, words, cache=tmp_path, lines=lines)["train"].stock
    assert (stock.unknown, stock.own) == (4, 3)
    assert stock.lacking("9 tokens") == [
        "1 of 9 tokens are unknown to the tokenizer",
        "3 of 9 tokens are the text's own <unk>",
    ]
    letters = prepare(texts, learn("char", [text]), cache=tmp_path, lines=lines)["train"].stock
    assert (letters.unknown, letters.own, letters.lacking("9 tokens")) == (0, 0, [])


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

    for number, (passage, encoded) in enumerate(in_order(lambda passage: passage.text, passages())):
        assert passage.text == encoded == str(number)  # in order, none left out
        ended += 1
    assert ended == 200
    assert 3 <= most <= 8


def test_what_goes_wrong_while_reading_or_encoding_is_heard(tmp_path):
    def passages():
        yield Passage("train", "a", True)
        raise RegardError("the file is gone")

    with pytest.raises(RegardError, match="the file is gone"):
        list(in_order(lambda passage: passage.text, passages()))
    with pytest.raises(ZeroDivisionError):
        list(in_order(lambda passage: 1 // 0, iter([Passage("train", "a", True)])))


def test_progress_is_told_in_characters_of_all_parts(tmp_path):
    told: list[int] = []
    texts: Texts = gather(files(tmp_path / "texts", *DOCUMENTS))
    prepare(texts, tokenizer("byte"), told.append, cache=tmp_path / "cache")
    assert told == sorted(told)
    assert told[-1] == sum(map(len, DOCUMENTS))
