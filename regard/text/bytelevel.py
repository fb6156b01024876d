"""The printable characters that `tokenizer.json` spells bytes with, one for each (GPT-2's table).

A byte that is a printable Latin-1 character stands for itself; the others, in order, are spelled
U+0100, U+0101, … so that a space reads Ġ and a newline Ċ.
"""

_PLAIN = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHERS = [byte for byte in range(256) if byte not in _PLAIN]

CHARACTERS = [chr(b if b in _PLAIN else 0x100 + _OTHERS.index(b)) for b in range(256)]  # by byte
_BYTES = {ord(character): byte for byte, character in enumerate(CHARACTERS)}


def spell(data: bytes) -> str:
    """The printable spelling of `data`, one character for each byte."""
    return "".join(CHARACTERS[byte] for byte in data)


def unspell(spelling: str) -> bytes:
    """The bytes that `spelling` stands for; KeyError if it has a character that spells none."""
    return bytes(_BYTES[ord(character)] for character in spelling)
