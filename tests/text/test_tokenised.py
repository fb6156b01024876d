"""Whether a text is tokenised is told from the text, and told right."""

import gzip
from pathlib import Path

import pytest
from learned_tokenizers import library

from regard.text.tokenised import ENOUGH, beginning, looks_tokenised

DATA = Path(__file__).parents[3] / "shared" / "data"

PROSE = """It was the best of times, it was the worst of times; Mr. Brown's dog didn't bark.
"Well!" he said (he's from the U.S.), "what now?" Nobody, I'm sure, had 3 ideas: none.
"""
TOKENISED = """It was the best of times , it was the worst of times ; Mr. Brown 's dog did n't bark
" Well ! " he said ( he 's from the U.S. ) , " what now ? " Nobody , I 'm sure , had 3 ideas .
"""
TEXTS = {
    "prose": (PROSE, False),
    "tokenised prose": (TOKENISED, True),
    "one line with blanks at both ends": (f" {TOKENISED} ".replace("\n", " "), True),
    "no signs at all": ("the cat sat on the mat and the dog on the rug\n", False),
    "sentences with nothing but full stops": ("the cat sat. the dog ran.\n", False),
    "tokenised sentences of the same kind": ("the cat sat . the dog ran .\n", True),
    "the Penn Treebank of language models": (
        "mr. <unk> is chairman of <unk> n.v. the dutch publishing group\n"
        "the company 's shares did n't trade and it 's N years old\n", True),
    "Moses with its escapes": ("&quot; the man &apos;s hat &quot; , he said &amp; left .\n", True),
    "tokenised French": ("l&apos; homme d&apos; affaires , qu&apos; il voit , est là .\n", True),
    "French as it is printed": ("Quoi ! dit-il ; pourquoi ? Voici : rien, ou presque.\n", False),
    "tokenised Chinese": ("我 喜欢 猫 ， 他 喜欢 狗 。\n", True),
    "Chinese": ("我喜欢猫，他喜欢狗。\n", False),
    "markdown": ("- **one**, two, [three](a.md)\n- `x , y`: it's\n\n# Title, again\n", False),
    "a poem": ("O my Luve's like a red, red rose,\n   That's newly sprung in June;\n", False),
    "code with commas set off": ("f(a , b , c);\ng(x , y[i] , z);\n", False),
    "Haskell": ("apply = map (f . g) . filter h . zip xs\npair = (a, b)\nrun [x] = x\n", False),
    "Perl": ("$text = $one . $two . ', ' . foo($three, $four);\n", False),
    "a table": ("word  12.5  0.3\nother  1.0  7\n", False),
}  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), TEXTS.values(), ids=TEXTS)
def test_texts_are_told_apart(text, wanted):
    assert looks_tokenised(text * 30) == wanted


def test_python_is_not_tokenised():
    assert not looks_tokenised(library())


def test_little_evidence_is_none():
    line = "a , b\n"
    assert not looks_tokenised(line * (ENOUGH - 1))
    assert looks_tokenised(line * ENOUGH)
    assert not looks_tokenised(line * ENOUGH + "words without a sign\n" * 3000)
    assert not looks_tokenised("")


def test_only_the_beginning_is_looked_at(monkeypatch):
    monkeypatch.setattr("regard.text.tokenised.SAMPLE", len(TOKENISED) * 30)
    assert looks_tokenised(TOKENISED * 30 + PROSE * 1000)
    assert not looks_tokenised(PROSE * 30 + TOKENISED * 1000)


@pytest.mark.parametrize("sample", [1, 3, 4, 100])
def test_a_sample_is_taken_and_nothing_is_lost(sample, monkeypatch):
    monkeypatch.setattr("regard.text.tokenised.SAMPLE", sample)
    texts = ["ab", "", "cd", "ef"]
    drawn = []
    head, again = beginning(drawn.append(text) or text for text in texts)
    assert len("".join(drawn)) <= sample + 1
    assert head == "\n".join(drawn)
    assert list(again) == texts


@pytest.mark.skipif(not DATA.is_dir(), reason="the data at hand is not at hand")
@pytest.mark.parametrize(("pattern", "wanted"), [
    ("wikitext-2/t*.txt", True),
    ("multi30k/tok/*", True),
    ("conformance/bpe/corpus.en", True),
    ("multi30k/raw/*", False),
    ("tinyshakespeare/*.txt", False),
    ("books/*.gz", False),
    ("words/*.txt", False),
])  # fmt: skip
def test_known_corpora_are_told_apart(pattern, wanted):
    paths = sorted(DATA.glob(pattern))
    assert paths
    for path in paths:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            assert looks_tokenised(file.read(1_000_000)) == wanted, path
