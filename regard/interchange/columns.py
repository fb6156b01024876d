"""Text in columns: the fields of millions of lines, found, told apart and read as numbers."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

BLANKS = b"\t\n\v\f\r "  # what stands between fields
BLANK = np.isin(np.arange(256), list(BLANKS))
PAD = 16  # bytes that may be looked at beyond the last field
UP_TO = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)  # the first bytes of eight
MIX = np.uint64(0x9E3779B97F4A7C15)
POWERS = 10.0 ** np.arange(PAD + 1)


@dataclass(frozen=True)
class LineBlock:
    """Some lines of a text, and where their fields are."""

    text: np.ndarray  # (bytes,) and PAD blanks
    starts: np.ndarray  # (fields,)
    sizes: np.ndarray  # (fields,) bytes
    first: np.ndarray  # (lines,) the number of each line's first field
    fields: np.ndarray  # (lines,) how many each has

    @classmethod
    def of(cls, text: np.ndarray, ends: np.ndarray) -> "LineBlock":
        """Whole lines (bytes,), and where each of them ends, newline included (lines,)."""
        padded = np.full(1 + len(text) + PAD, ord("\n"), np.uint8)
        padded[1 : 1 + len(text)] = text
        blank = BLANK[padded]
        edges = np.flatnonzero(blank[1:] != blank[:-1]) + 1  # begin and end of each field in turn
        starts, stops = edges[::2], edges[1::2]
        last = np.searchsorted(starts, ends + 1)  # (lines,) how many fields up to its end
        first = np.concatenate((np.zeros(1, np.int64), last))[: len(last)]
        return cls(padded, starts, stops - starts, first, last - first)

    def texts(self, fields: np.ndarray) -> Iterator[bytes]:
        """Some fields as they stand."""
        text = self.text.tobytes()
        starts, sizes = self.starts[fields].tolist(), self.sizes[fields].tolist()
        return (text[start : start + size] for start, size in zip(starts, sizes, strict=True))

    def hashes(self, fields: np.ndarray) -> np.ndarray:
        """64 bits (fields,) that tell some fields apart; eight bytes at a time."""
        starts, sizes = self.starts[fields], self.sizes[fields]
        eights = np.ndarray((len(self.text) - 7,), "<u8", self.text, strides=(1,))  # from each byte
        found = sizes.astype(np.uint64) * MIX
        for at in range(0, int(sizes.max(initial=0)), 8):
            here = np.flatnonzero(sizes > at)
            word = eights[starts[here] + at] & UP_TO[np.minimum(sizes[here] - at, 8)]
            mixed = (found[here] ^ word) * MIX
            found[here] = mixed ^ (mixed >> np.uint64(29))
        return found

    def numbers(self, fields: np.ndarray) -> np.ndarray:
        """The number (fields,) that each of some fields spells, as `float` has it; NaN if none."""
        starts, sizes = self.starts[fields], self.sizes[fields]
        digits, decimals, points = np.zeros((3, len(starts)), np.int64)
        negative = self.text[starts] == ord("-")
        plain = sizes <= PAD  # digits, perhaps a sign before and a point among them, that fit
        for at in range(min(int(sizes.max(initial=0)), PAD)):
            inside = sizes > at
            byte = self.text[starts + at]
            digit = byte - np.uint8(ord("0"))  # above 9 for anything else
            is_digit, is_point = inside & (digit < 10), inside & (byte == ord("."))
            digits = np.where(is_digit, digits * 10 + digit, digits)
            decimals += is_digit & (points > 0)
            points += is_point
            plain &= is_digit | is_point | ~inside | (negative & (at == 0))
        plain &= (points <= 1) & (sizes > negative + points)
        values = digits / POWERS[decimals]
        np.negative(values, out=values, where=negative)
        rare = np.flatnonzero(~plain)  # such as 1e-05
        values[rare] = [_number(spelled) for spelled in self.texts(fields[rare])]
        return values


def _number(spelled: bytes) -> float:
    try:
        return math.nan if b"_" in spelled else float(spelled)
    except ValueError:
        return math.nan
