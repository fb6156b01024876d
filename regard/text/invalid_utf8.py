"""Bytes that are not UTF-8, carried through `str` as Python's surrogateescape does.

The byte 0x80 + k becomes the lone surrogate U+DC80 + k, which no valid text contains, so that a
text with broken bytes can be read, cut and counted like any other and nothing is lost. The other
surrogates come from no byte (a JSON escape can make one) and are read as U+FFFD.
"""

import re
from collections.abc import Iterator

REPLACEMENT = "\ufffd"
_SURROGATE = re.compile("[\ud800-\udfff]")
_FROM_NO_BYTE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_FROM_BYTES = re.compile("([\udc80-\udcff]+)")


def broken(text: str) -> int:
    """How many characters of `text` stand for bytes that are not UTF-8."""
    return 0 if _valid(text) else len(_SURROGATE.findall(text))


def replace_invalid_utf8(text: str) -> str:
    """`text` with U+FFFD for whatever is broken."""
    return text if _valid(text) else _SURROGATE.sub(REPLACEMENT, text)


def escaped(text: str) -> bytes:
    """The bytes that `text` was read from."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return _FROM_NO_BYTE.sub(REPLACEMENT, text).encode("utf-8", "surrogateescape")


def canonical(text: str) -> str:
    """`text` as if read from its own bytes: escapes in JSON can make surrogates at will."""
    return text if _valid(text) else escaped(text).decode("utf-8", "surrogateescape")


def parts(text: str) -> Iterator[str | bytes]:
    """Valid stretches of `text` as `str` and broken ones as `bytes`, in turn; none is empty."""
    if _valid(text):
        if text:
            yield text
        return
    for part in _FROM_BYTES.split(_FROM_NO_BYTE.sub(REPLACEMENT, text)):
        if part:
            yield part.encode("utf-8", "surrogateescape") if _FROM_BYTES.match(part) else part


def _valid(text: str) -> bool:
    try:
        text.encode()  # 1 GB/s, an order faster than a search by pattern
    except UnicodeEncodeError:
        return False
    return True
