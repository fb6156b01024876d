"""What a user hears when an input is wrong: one sentence for each thing, all at once."""

import difflib
from collections.abc import Iterable

from regard.terminal import BULLET, LISTED


class RegardError(Exception):
    """A mistake in the input: what was wrong, where, and what to do. Shown without a traceback."""


class UnreadableError(RegardError):
    """A file that the system did not let us read. It may be whole: it is not to be replaced."""

    def __init__(self, path: object, error: Exception) -> None:
        reason = getattr(error, "strerror", None) or str(error) or "not enough memory"
        super().__init__(f"{path} cannot be read: {reason}")


class Problems:
    """Collects everything that is wrong with one input, then raises it together."""

    def __init__(self, subject: str, listed: int = LISTED) -> None:
        """`listed`: so many are named one by one, the others counted."""
        self.subject, self.listed = subject, listed
        self.found: list[str] = []

    def require(self, condition: bool, otherwise: str) -> None:
        """Note `otherwise` as a problem unless `condition` holds."""
        if not condition:
            self.found.append(otherwise)

    def add(self, problem: str) -> None:
        self.found.append(problem)

    def report(self) -> None:
        """Raise one `RegardError` that names every problem found; do nothing if there is none."""
        if len(self.found) == 1:
            raise RegardError(f"{self.subject}: {self.found[0]}")
        if self.found:
            lines = "".join(f"{BULLET}{problem}" for problem in self.found[: self.listed])
            if len(self.found) > self.listed:
                lines += f"{BULLET}and {len(self.found) - self.listed:,} more"
            raise RegardError(f"{self.subject}: {len(self.found)} problems{lines}")


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a mistyped word: `did you mean 'x'?` or the list of what is known."""
    known = sorted(known)
    close = difflib.get_close_matches(word.lower(), known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
