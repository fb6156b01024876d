"""Text to ids and back, and the file that holds a tokenizer."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from learned_tokenizers import ALL, BPE, hard_texts, library, tokenizer
from tokenizers import models, pre_tokenizers

from regard.errors import RegardError
from regard.text.bytelevel import CHARACTERS, spell, unspell
from regard.text.learning import learn
from regard.text.specials import BOS, EOS, MASK, PAD, SPECIALS, UNK
from regard.text.tokenizer import KINDS, Tokenizer

some_bytes = st.binary(max_size=60) | st.lists(
    st.sampled_from([b"\xe2", b"\x82\xac", "€".encode(), b"\xff", b" ", b"the", b"\xed\xa0\x80"])
).map(b"".join)


@pytest.mark.parametrize("name", ["byte", *BPE])
@given(data=some_bytes)
def test_every_sequence_of_bytes_comes_back(name, data):
    tokens = tokenizer(name)
    assert tokens.decode_bytes(tokens.encode(data)) == data
    escaped = data.decode("utf-8", "surrogateescape")
    assert np.array_equal(tokens.encode(escaped), tokens.encode(data))


@pytest.mark.parametrize("name", ["byte", *BPE])
@given(text=st.text())
def test_every_valid_text_comes_back(name, text):
    assert tokenizer(name).decode(tokenizer(name).encode(text)) == text


@given(text=st.text(sorted(set(library()))))
def test_a_text_of_known_characters_comes_back(text):
    assert tokenizer("char").decode(tokenizer("char").encode(text)) == text


@pytest.mark.parametrize("name", ALL)
@given(ids=st.lists(st.integers(0, 260)))
def test_specials_are_left_out_of_texts_and_named_among_pieces(name, ids):
    tokens = tokenizer(name)
    ids = [i for i in ids if i < len(tokens)]
    ordinary = [i for i in ids if i >= len(SPECIALS)]
    assert tokens.decode(ids) == tokens.decode(ordinary)
    shown = [SPECIALS[i] if i < len(SPECIALS) else tokens.pieces([i])[0] for i in ids]
    assert tokens.pieces(ids) == shown
    assert all(piece.isprintable() for piece in shown)


@pytest.mark.parametrize("name", ALL)
def test_specials_are_the_first_ids(name):
    assert (PAD, BOS, EOS, UNK, MASK) == (0, 1, 2, 3, 4)
    for i, text in enumerate(SPECIALS):
        assert tokenizer(name).reference.token_to_id(text) == i
        assert tokenizer(name).pieces([i]) == [text]


@pytest.mark.parametrize("name", ALL)
@given(text=hard_texts)
def test_no_text_spells_a_special_but_the_unknown_word(name, text):
    ids = tokenizer(name).encode(f"{text}<s></s><pad>{text} <mask>").tolist()
    allowed = {UNK} if tokenizer(name).kind in ("char", "word") else set()
    assert set(ids) & set(range(len(SPECIALS))) <= allowed


def test_ids_are_specials_then_bytes_then_merges_in_order():
    tokens = tokenizer("bpe")
    contents = tokens.vocabulary.contents()
    assert contents[5:261] == [bytes([byte]) for byte in range(256)]
    assert [spell(content) for content in contents[261:]] == [
        left + right for left, right in tokens.vocabulary.merges
    ]
    assert tokenizer("byte").encode("\0A").tolist() == [5, 5 + 65]
    assert len(tokenizer("byte")) == 261
    assert len(tokens) == 3000


def test_bytes_are_spelled_as_the_library_does():
    assert sorted(CHARACTERS) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert spell(b" \n\xe2") == "ĠĊâ"
    assert unspell(spell(bytes(range(256)))) == bytes(range(256))


def test_unknown_characters_and_words_are_counted():
    characters, words = learn("char", ["ab c"]), learn("word", ["one two"])
    assert characters.encode("abxc\ny").tolist().count(UNK) == 3
    assert characters.unknown(characters.encode("abxc\ny")) == 3
    assert words.unknown(words.encode("one three <unk> two")) == 2
    assert words.unknown(words.encode("two one")) == 0


def test_broken_bytes_are_replacement_characters_to_characters_and_words():
    without, having = learn("char", ["ab"]), learn("char", ["ab\ufffd"])
    assert without.encode(b"a\xff").tolist()[1] == UNK
    assert having.decode(having.encode(b"a\xffb")) == "a\ufffdb"
    assert having.decode(having.encode("a\ud800b")) == "a\ufffdb"
    words = learn("word", ["ab \ufffd"])
    assert words.decode(words.encode(b"ab \xff")) == "ab \ufffd"


def test_a_surrogate_that_no_byte_gave_is_a_replacement_character():
    for name in ("byte", "bpe"):
        assert tokenizer(name).decode_bytes(tokenizer(name).encode("a\ud800")) == "a\ufffd".encode()


@pytest.mark.parametrize(
    "text",
    [
        "one, two: (three) [four] five!",
        "first line.\nsecond line;\n\nthird",
        "it's well-known that we'll see’s",
        "“so”, she said… 5% «more»",
    ],
)
def test_words_are_joined_as_they_are_written(text):
    words = learn("word", [text])
    assert words.decode(words.encode(text)) == text


def test_words_between_blanks_are_all_that_stands_there():
    text = "the U.S. , he said @-@ it 's ( so ) <unk> <unk>s x<unk> </s> <pad>\n<s>\r\n a\x1cb"
    words = learn("word", [text], tokenised=True)
    ids = words.encode(text).tolist()
    shown = (
        "the U.S. , he said @-@ it 's ( so ) <unk> <unk>s x<unk> < /s> < pad> ↵ < s> ↵ a⟨U+001C⟩b"
    )
    assert words.pieces(ids) == shown.split()
    assert [i for i in ids if i < len(SPECIALS)] == [UNK]


standing = st.text("ab.,'’-<>()@é中\u0301", min_size=1) | st.sampled_from(["\n", "n't", "U.S."])


@given(st.lists(standing.filter(lambda word: word not in SPECIALS)))
def test_words_between_blanks_come_back_as_they_stood(found):
    text = "\n".join(line.strip(" ") for line in " ".join(found).split("\n"))
    if text:
        words = learn("word", [text], tokenised=True)
        assert words.decode(words.encode(text)) == text


def test_fingerprints_of_words_are_what_they_were():
    vocabulary = learn("word", ["a b"], tokenised=False).vocabulary
    known = "5e4f76139ad036f843a353d0b5b3b62faef77f9664f12ff9553642d9f63b13b5"
    assert Tokenizer(vocabulary).fingerprint == known
    assert Tokenizer(replace(vocabulary, tokenised=True)).fingerprint != known


def test_pieces_are_printable_and_tell_blanks_and_broken_bytes():
    tokens = tokenizer("byte")
    assert tokens.pieces(tokens.encode("a \n\t\r")) == ["a", "·", "↵", "⇥", "␍"]
    assert tokens.pieces(tokens.encode("€")) == ["⟨E2⟩", "⟨82⟩", "⟨AC⟩"]
    assert tokens.pieces(tokens.encode("\0")) == ["⟨U+0000⟩"]
    assert "·return" in tokenizer("bpe").pieces(tokenizer("bpe").encode("x\n    return x"))


@pytest.mark.parametrize("strange", [-1, 261])
def test_an_id_outside_the_vocabulary_is_named(strange):
    with pytest.raises(RegardError, match=f"id {strange} is not in this vocabulary of 261 tokens"):
        tokenizer("byte").decode([5, strange])


@pytest.mark.parametrize("name", ALL)
def test_a_saved_tokenizer_is_loaded_as_it_was(name, tmp_path):
    tokens = tokenizer(name)
    tokens.save(tmp_path / "new" / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "new" / "tokenizer.json")
    assert loaded.kind == tokens.kind == name.split("-")[0]
    assert loaded.vocabulary == tokens.vocabulary
    assert loaded.fingerprint == tokens.fingerprint
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["tokenizer.json"]
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (
        tmp_path / "new" / "tokenizer.json"
    ).read_bytes()


def test_fingerprints_tell_tokenizers_apart():
    assert len({tokenizer(name).fingerprint for name in ALL}) == len(ALL)


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_of_the_smallest_tokenizer_is_told_from_its_file(kind, tmp_path):
    learn(kind, ["a"], 261 if kind == "bpe" else 0).save(tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path / "tokenizer.json").kind == kind


@pytest.mark.parametrize("name", ["byte", "char", "word", "word-tokenised", "bpe"])
def test_transformers_reads_the_file_and_gives_the_same_ids(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer(name).save(tmp_path / "tokenizer.json")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    text = library()[:20_000] + "\n don't  stop: 12 + é"
    ids = tokenizer(name).encode(text).tolist()
    assert theirs(text)["input_ids"] == ids
    assert len(theirs) == len(tokenizer(name))
    if tokenizer(name).kind != "word":
        assert theirs.decode(ids, skip_special_tokens=True) == tokenizer(name).decode(ids)


def refused(content: str | bytes, path) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RegardError) as caught:
        Tokenizer.load(path)
    assert str(caught.value).startswith(str(path))
    return str(caught.value)


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    assert "no tokenizer of the `tokenizers` library" in refused("{}", path)
    assert "no tokenizer of the `tokenizers` library" in refused("", path)
    assert "not UTF-8" in refused(b"\xff\xfe", path)
    with pytest.raises(RegardError, match="cannot be read"):
        Tokenizer.load(tmp_path / "missing.json")


def test_tokenizers_of_other_makers_are_refused_in_a_sentence(tmp_path):
    path = tmp_path / "tokenizer.json"
    gpt2 = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(CHARACTERS)}, []))
    gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert "must be <pad> <s> </s> <unk> <mask>" in refused(gpt2.to_str(), path)
    pieces = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    assert "of no kind that Regard has" in refused(pieces.to_str(), path)


CHANGES = {
    "prefix": ("pre_tokenizer", {"add_prefix_space": True}, "its pre_tokenizer has settings"),
    "dropout": ("model", {"dropout": 0.1}, "its model has settings"),
    "suffix": ("model", {"end_of_word_suffix": "</w>"}, "its model has settings"),
}


@pytest.mark.parametrize(("part", "change", "said"), CHANGES.values(), ids=CHANGES)
def test_a_setting_that_would_change_ids_is_refused(part, change, said, tmp_path):
    content = json.loads(tokenizer("byte").reference.to_str())
    content[part] |= change
    assert said in refused(json.dumps(content), tmp_path / "tokenizer.json")


def test_a_normalizer_is_refused(tmp_path):
    content = json.loads(tokenizer("bpe").reference.to_str()) | {"normalizer": {"type": "NFC"}}
    assert "its normalizer has settings" in refused(json.dumps(content), tmp_path / "t.json")


def test_wrong_ids_and_tokens_are_refused(tmp_path):
    content = json.loads(tokenizer("char").reference.to_str())
    content["model"]["vocab"]["xy"] = len(content["model"]["vocab"])
    assert "single characters" in refused(json.dumps(content), tmp_path / "t.json")
    del content["model"]["vocab"]["xy"]
    content["model"]["vocab"]["\u1234"] = 99_999
    assert "none left out" in refused(json.dumps(content), tmp_path / "t.json")
    content = json.loads(tokenizer("byte").reference.to_str())
    content["model"]["vocab"]["é€"] = 261
    assert "256 bytes and no more" in refused(json.dumps(content), tmp_path / "t.json")
