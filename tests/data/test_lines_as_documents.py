"""Each line as `<s> … </s>`: the tokens of lines split off the whole text, however it is cut."""

import hashlib
import tempfile
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_documents import DOCUMENTS, files, halves, tokenizer

from regard.data.readers import texts as texts_module
from regard.data.readers.files import pieces
from regard.data.readers.texts import Texts, gather
from regard.data.token_files import FORMAT, SHARD, Tokens, prepare
from regard.text.cutting import PATIENCE, cut
from regard.text.learning import learn
from regard.text.specials import BOS, EOS, UNK
from regard.text.tokenizer import KINDS, Tokenizer


def lines_of(document: str) -> list[str]:
    """As `wc -l` counts them, and one more if there is something behind the last newline."""
    lines = document.split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


def check(tokens: Tokens, documents: list[str], how: Tokenizer) -> None:
    lines = [line for document in documents for line in lines_of(document)]
    rows = [[BOS, *how.encode(line).tolist(), EOS] for line in lines]
    ids = [token for row in rows for token in row]
    assert tokens.read(0, len(tokens)).tolist() == ids
    assert tokens.starts.tolist() == [0, *accumulate(map(len, rows))][:-1]
    assert tokens.stock.tokens == len(ids)
    assert tokens.stock.documents == len(lines)
    assert tokens.stock.unknown == ids.count(UNK)
    assert tokens.stock.bytes == sum(len(document.encode()) for document in documents)


@pytest.mark.parametrize("size", [10, 1 << 20])
@pytest.mark.parametrize("kind", KINDS)
def test_lines_of_files_are_documents_in_every_kind(kind, size, tmp_path, monkeypatch):
    monkeypatch.setattr(texts_module, "pieces", lambda path: pieces(path, size))
    more = ["a\r\nb\n\n\r\n\nthe end\r", "\n", "\n\nx", "no end", "\r\n"]
    documents, how = [*DOCUMENTS, *more], tokenizer(kind)
    texts = gather(files(tmp_path / "texts", *documents))
    found = prepare(texts, how, cache=tmp_path / "cache", shard=64, lines=True)
    for part, of_part in halves(documents).items():
        check(found[part], of_part, how)


pieced = st.text("ab \n\r", max_size=40) | st.lists(
    st.sampled_from(
        ["a", "ab b", " ", "\n", "\r\n", "\r", "\n\n", "\x1c", "é", "中", ".", "<unk>"]
    ),
    max_size=30,
).map("".join)


@pytest.mark.parametrize("name", ["byte", "char", "word", "tokenised", "bpe"])
@given(documents=st.lists(pieced.filter(bool), min_size=1, max_size=4), size=st.integers(1, 9))
def test_lines_are_whole_however_a_text_is_cut(name, documents, size):
    found = [piece for document in documents for piece in cut([document], size)]
    forced = any(len(piece.text) >= PATIENCE * size - 1 for piece in found if not piece.last)
    if forced and name not in ("byte", "char"):
        return
    how = learn("word", ["ab a"], tokenised=True) if name == "tokenised" else tokenizer(name)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts_module, "pieces", lambda path: pieces(path, size))
        texts = gather(files(Path(folder) / "texts", *documents), held_out=0.0)
        check(prepare(texts, how, cache=Path(folder), lines=True)["train"], documents, how)


@pytest.mark.parametrize("kind", ["byte", "char"])
def test_a_cut_by_force_behind_a_newline_begins_a_line(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(texts_module, "pieces", lambda path: pieces(path, 1))
    documents, how = ["\n" * 10 + "a\r\n \n", "\n" * 8, "\r" * 9 + "\n\n\nb"], tokenizer(kind)
    texts = gather(files(tmp_path / "texts", *documents), held_out=0.0)
    cuts = [passage.text for passage in texts.passages() if not passage.last]
    assert {text[-1] for text in cuts} >= {"\n", "\r"}
    check(prepare(texts, how, cache=tmp_path / "c", lines=True)["train"], documents, how)


def test_lines_and_documents_are_kept_apart(tmp_path):
    texts, how = gather(files(tmp_path / "texts", *DOCUMENTS)), tokenizer("word")

    def prepared(lines: bool) -> int:
        found = prepare(texts, how, cache=tmp_path / "cache", lines=lines)
        return found["train"].stock.documents

    few, many = prepared(lines=False), prepared(lines=True)
    assert (few, many) == (3, 3 + 4 + 1)  # the shortest is held out
    assert (prepared(lines=False), prepared(lines=True)) == (few, many)
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_what_was_prepared_before_there_were_lines_is_found(tmp_path):
    texts: Texts = gather(files(tmp_path / "texts", *DOCUMENTS))
    how = tokenizer("byte")
    prepare(texts, how, cache=tmp_path / "cache")
    name = f"{FORMAT} {SHARD} {how.fingerprint} {texts.digest}"
    key = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [f"tokens-{key}"]


def test_the_newline_of_a_vocabulary_is_never_used_for_lines(tmp_path):
    how = learn("word", ["a\nb"])
    newline = how.vocabulary.tokens.index("\n")
    texts = gather(files(tmp_path / "texts", "a\nb\n"), held_out=0.0)
    found = prepare(texts, how, cache=tmp_path / "cache", lines=True)["train"]
    assert newline not in found.read(0, 100)
    assert newline in prepare(texts, how, cache=tmp_path / "cache")["train"].read(0, 100)
