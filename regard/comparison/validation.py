"""Whether figures in a file are such as are measured: the file may have come from anybody."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

LARGEST = 1e100  # far from what can be measured, and a chart can still be made of it
GROWTH = ("flops", "seconds", "step_flops", "step_seconds", "state_bytes")
Form = Callable[[Any], bool]


def well_formed(kind: str, figures: Mapping[str, Any]) -> bool:
    """Whether figures of one kind (as `Measurement` has them) have the form they are kept in."""
    return FORMS[kind](figures)


def number(value: Any) -> bool:
    """Whether it is a finite number of a size that can be measured."""
    return type(value) in (int, float) and abs(value) < LARGEST


def _amount(value: Any) -> bool:
    return value is None or (number(value) and value >= 0)


def _each(form: Form) -> Form:
    return lambda value: isinstance(value, list) and all(map(form, value))


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _range(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(number, value))


def _bucket(value: Any) -> bool:
    known = isinstance(value, dict) and {"first", "last", "bleu"} <= value.keys()
    return known and all(one is None or number(one) for one in value.values()) and _ends(value)


def _ends(bucket: Mapping[str, Any]) -> bool:
    return number(bucket["first"]) and number(bucket["last"])


def _quality(found: Mapping[str, Any]) -> bool:
    plain = {name: value for name, value in found.items() if name != "by_length"}
    buckets = _each(_bucket)(found.get("by_length", []))
    return buckets and all(v is None or _text(v) or number(v) for v in plain.values())


def _context(found: Mapping[str, Any]) -> bool:
    lengths, losses = found.get("tokens", []), found.get("loss", [])
    if not (_each(number)(lengths) and _each(_amount)(losses)):
        return False
    rising = all(low < high for low, high in pairwise([0, *lengths]))
    return rising and len(lengths) == len(losses)


def _lengths(found: Mapping[str, Any]) -> bool:
    places, losses = found.get("positions", []), found.get("loss", [])
    return _each(_range)(places) and _each(_amount)(losses) and len(places) == len(losses)


def _cost(found: Mapping[str, Any]) -> bool:
    rows = [found.get(name, 0) for name in ("lengths", *GROWTH)]
    if not all(map(_each(_amount), rows)) or None in rows[0]:
        return False
    return len(set(map(len, rows))) == 1


def _speed(found: Mapping[str, Any]) -> bool:
    return all(number(value) and value >= 0 for value in found.values())


def _samples(found: Mapping[str, Any]) -> bool:
    return {"given", "written"} <= found.keys() and all(map(_each(_text), found.values()))


def _memory(found: Mapping[str, Any]) -> bool:
    return not found or ({"weights", "activations"} <= found.keys() and _speed(found))


FORMS: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "quality": _quality,
    "context": _context,
    "lengths": _lengths,
    "cost": _cost,
    "speed": _speed,
    "samples": _samples,
    "memory": _memory,
}
