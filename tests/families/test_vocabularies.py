"""The tokenizer of a run: learned as it is asked for, and found again only by who asks the same."""

import hashlib

import pytest

from regard.data.progress import Progress
from regard.data.readers.texts import gather
from regard.families.data.vocabularies import tokenizer_for
from regard.text.learning import learn, vocabulary_for
from regard.training.settings import TokenizerSettings

RAW = "the cat, he said, isn't here: it's (so) far.\n" * 40
TOKENISED = "the U.S. , he said , is n't here ; it 's far .\n" * 40


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def texts(path, content):
    path.write_text(content)
    return gather([path], held_out=0.0)


@pytest.mark.parametrize(("content", "wanted"), [(RAW, False), (TOKENISED, True)])
def test_words_are_found_as_the_text_needs_or_as_it_is_asked(content, wanted, cache, tmp_path):
    given = texts(tmp_path / "a.txt", content)
    for asked, tokenised in {"auto": wanted, "yes": True, "no": False}.items():
        settings = TokenizerSettings(kind="word", tokenised=asked)
        for _ in range(2):  # learned, then found
            vocabulary = tokenizer_for(settings, given, Progress()).vocabulary
            assert vocabulary == learn("word", [content], tokenised=tokenised).vocabulary
            assert vocabulary.tokenised == tokenised
    assert len(list(cache.glob("*.json"))) == 2  # what looks tokenised is kept with what is said so


@pytest.mark.parametrize("kind", ["bpe", "byte", "char", "word"])
def test_a_tokenizer_from_before_lines_is_found(kind, cache, tmp_path):
    given = texts(tmp_path / "a.txt", RAW)
    settings = TokenizerSettings(kind=kind, vocabulary=300)
    tokenizer_for(settings, given, Progress())
    key = hashlib.blake2b(f"1 {kind} 300 {given.digest}".encode(), digest_size=16).hexdigest()
    assert [path.name for path in cache.glob("*.json")] == [f"tokenizer-{key}.json"]


def test_lines_and_rare_tokens_have_tokenizers_of_their_own(cache, tmp_path):
    given = texts(tmp_path / "a.txt", RAW + "rare\n")
    found = [
        tokenizer_for(TokenizerSettings(kind="word", min_frequency=least), given, Progress(), lines)
        for lines in (False, True, False, True)
        for least in (0, 2, 3)
    ]
    assert len(list(cache.glob("*.json"))) == 6
    for half in (found[:6], found[6:]):
        for number, tokenizer in enumerate(half):
            assert ("\n" in tokenizer.vocabulary.tokens) == (number < 3)
            assert ("rare" in tokenizer.vocabulary.tokens) == (number % 3 == 0)


def test_all_words_are_more_than_any_text_has():
    assert vocabulary_for("word", 10, all_words=True) == 1 << 24
    assert vocabulary_for("word", 1 << 40) == 0
    assert vocabulary_for("char", 1 << 40, all_words=True) == 0
    assert vocabulary_for("bpe", 10, all_words=True) == 512
