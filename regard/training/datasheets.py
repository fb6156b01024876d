"""What the makers of GPUs promise: one place for all who compare with it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sheet:
    """A datasheet: dense operations a second, bytes a second, bytes."""

    half: float  # in bfloat16
    full: float  # in float32
    bandwidth: float
    memory: int
    link: float = 0.0  # between two of them


SHEETS = {
    "h200": Sheet(989e12, 67e12, 4.8e12, 141 * 10**9, 450e9),
    "h100": Sheet(989e12, 67e12, 3.35e12, 80 * 10**9, 450e9),
    "a100": Sheet(312e12, 19.5e12, 2.0e12, 80 * 10**9, 300e9),
    "l40s": Sheet(362e12, 91.6e12, 864e9, 48 * 10**9, 32e9),
    "a10": Sheet(125e12, 31.2e12, 600e9, 24 * 10**9, 32e9),
    "l4": Sheet(121e12, 30.3e12, 300e9, 24 * 10**9, 32e9),
    "4090": Sheet(165e12, 82.6e12, 1.0e12, 24 * 10**9, 32e9),
    "3090": Sheet(71e12, 35.6e12, 936e9, 24 * 10**9, 32e9),
}


def named_in(words: str) -> str:
    """Which of them a device's name stands for, in words or with dashes; "" if none."""
    found = words.lower().replace("-", " ").split()
    return next((name for name in SHEETS if name in found), "")  # an L40 is no L4
