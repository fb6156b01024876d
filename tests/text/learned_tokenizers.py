"""Tokenizers to test, learned once, and texts that are hard to cut."""

import sysconfig
from functools import cache
from pathlib import Path

from hypothesis import strategies as st

from regard.text.learning import learn
from regard.text.tokenizer import Tokenizer

HARD = [
    "a", "aa", "aaaa", "b", "ab", "=", "====", "--", "-", "'", "’", "'s", "'ll", "n't", " ", "  ",
    "\n", "\r\n", "\n\n", "\t", "\x1c", "\x85", "\u3000", "\u2028", "\xa0", "1", "23", "4567", "²",
    "½", "é", "e\u0301", "ß", "Straße", "дом", "हिन्दी", "中文", "の", "𠀀", "\U00032000", "🙂",
    "👩‍👩‍👧", "_", "‿", "\ufffd", "\0", "<", ">", "</s>", "<unk>", "<pad>", "<mask>", "the ",
    " the", "x" * 300, "ab" * 200, "=" * 150, " " * 120, ".", ",", "?!",
    "\x1d\x1e", "\x1f", " <s> ", "\n</s>\n", " <unk>\xa0", " <unk>, ", "\t<pad>\r",
]  # fmt: skip

hard_texts = st.lists(
    st.sampled_from(HARD) | st.text(max_size=5) | st.text("ab= ", max_size=12), max_size=20
).map("".join)


@cache
def library(size: int = 300_000) -> str:
    """The beginning of the Python library's own source."""
    text = ""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_text(encoding="utf-8")
        if len(text) >= size:
            break
    return text[:size]


@cache
def tokenizer(name: str) -> Tokenizer:
    """By kind, or one of several of kind bpe: what their texts repeat is what they merge."""
    if name in ("byte", "char", "word"):
        return learn(name, [library()], 0)  # type: ignore[arg-type]
    if name == "word-tokenised":
        return learn("word", [library(), *HARD], 0, tokenised=True)
    texts = {
        "bpe": [library()],
        "bpe-letters": ["a" * n + " " + "ab" * n + " " + "aba" * n for n in range(1, 40)],
        "bpe-signs": ["=" * n + "\n" + "-=" * n + "  " * n + "'" * n for n in range(1, 40)],
        "bpe-scripts": ["".join(HARD) * 3, *HARD, *HARD],
    }
    return learn("bpe", texts[name], {"bpe": 3000}.get(name, 600))


BPE = ("bpe", "bpe-letters", "bpe-signs", "bpe-scripts")
ALL = ("byte", "char", "word", "word-tokenised", *BPE)
