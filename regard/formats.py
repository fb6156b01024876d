"""Numbers and texts as a person reads them."""

import math
from collections.abc import Callable, Sequence

from regard.storage import size as size  # one spelling of bytes, here among the others


def count(number: float) -> str:
    """9,999 as it is, then 12.3k, 4.5M, 6.7B, 8.9T."""
    return f"{number:,.0f}" if number < 9999.5 else _scaled(number, ("", "k", "M", "B", "T"))


def _scaled(number: float, units: Sequence[str]) -> str:
    power = 0
    while number >= 999.95 and power < len(units) - 1:  # 999.95 would round to 1000.0
        number, power = number / 1000, power + 1
    return f"{number:.1f}{units[power]}"


def duration(seconds: float) -> str:
    """The two largest units: 45 s, 2 min 5 s, 3 h 20 min, 4 d 1 h."""
    if not math.isfinite(seconds):
        return "?"
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    rest = max(0, round(seconds))
    first = next((i for i, (_, length) in enumerate(units) if rest >= length), 3)
    parts: list[str] = []
    for name, length in units[first : first + 2]:
        whole, rest = divmod(rest, length)
        if whole or not parts:
            parts.append(f"{whole} {name}")
    return " ".join(parts)


def moment(seconds: float) -> str:
    """Less than a minute in three digits, more in its two largest units: 553 ms, 2.55 s, 3 min."""
    if not seconds < 59.95:
        return duration(seconds)
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def rate(per_second: float) -> str:
    """Tokens a second: 4.2, 12,345, 1.2M."""
    return f"{per_second:,.0f}" if 9.95 <= per_second < 999_999.5 else _small(per_second)


def _small(number: float) -> str:
    return f"{number:.1f}" if number < 10 else count(number)


def percent(share: float, digits: int = 2) -> str:
    """A share of one in so many digits: 41 %, 4.1 %; but never less than whole per cents."""
    whole = len(f"{100 * abs(share):.0f}")
    return f"{100 * share:.{max(0, digits - whole)}f} %"


def decimals(places: int) -> Callable[[float], str]:
    """So many decimals, or the same number of digits where those would not be readable."""

    def shown(number: float) -> str:
        if math.isfinite(number) and abs(number) >= 1e5:
            return f"{number:.{places}g}"
        return f"{number:.{places}f}"

    return shown


def many(count: int, what: str) -> str:
    """1 row, 2 rows."""
    return f"{count:,} {what}" + "s" * (count != 1)
