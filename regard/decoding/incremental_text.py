"""Tokens to text as they come: whole characters only, and nothing behind a stop string."""

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from regard.errors import Problems, RegardError
from regard.text.tokenizer import Tokenizer

LONGEST_CHARACTER = 4  # bytes of UTF-8, which may be as many tokens
MOST_STOPS, LONGEST_STOP = 64, 1000  # strings, and characters of one


class Spelling:
    """The text of one row, spelled token by token behind its prompt."""

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int] = (), text: str | None = None
    ) -> None:
        """Behind a prompt; `text` is how it was given, where that is known."""
        self.tokenizer = tokenizer
        self._last = (tokenizer.decode(prompt) if text is None else text)[-1:]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # Ids may leave off in the middle of a character; what makes it whole then shows it.
        self._decoder.decode(tokenizer.decode_bytes(list(prompt)[-LONGEST_CHARACTER:]))
        self.held = len(self._decoder.getstate()[0])  # so many bytes of the prompt

    def add(self, token: int) -> str:
        """What the token makes certain; a character that is not whole yet waits for the next."""
        new = self._decoder.decode(self.tokenizer.behind(self._last, token))
        self._last = new[-1:] or self._last
        return new

    def end(self) -> str:
        """What is left when nothing more comes: broken characters as U+FFFD."""
        return self._decoder.decode(b"", final=True)


@dataclass
class Stops:
    """Watches one row's text for strings that end it, wherever tokens begin and end."""

    strings: Sequence[str]
    stopped: bool = field(default=False, init=False)
    _held: str = field(default="", init=False)  # may be the beginning of one of the strings

    def add(self, text: str) -> str:
        """What may be shown of the text so far; once `stopped`, nothing more."""
        if self.stopped:
            return ""
        held = self._held + text
        found = [
            (place + len(string), place)
            for string in self.strings
            if (place := held.find(string)) >= 0
        ]
        if found:  # the one that is whole first, so that it does not matter how the text is cut up
            self.stopped, self._held = True, ""
            return held[: min(found)[1]]
        keep = max((_overlap(held, string) for string in self.strings), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def end(self) -> str:
        """What was held back, when nothing more comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, string: str) -> int:
    """How many of the last characters of `text` begin `string`."""
    most = min(len(text), len(string) - 1)
    return next((size for size in range(most, 0, -1) if text.endswith(string[:size])), 0)


def checked_stops(strings: Iterable[str]) -> tuple[str, ...]:
    """The strings, if they can be watched for."""
    if not isinstance(strings, Iterable):
        raise RegardError(f"stop strings must be a list of texts, not {strings!r:.40}")
    given = (strings,) if isinstance(strings, str) else tuple(strings)
    problems = Problems("stop strings")
    problems.require(
        len(given) <= MOST_STOPS, f"{len(given):,} are too many; give at most {MOST_STOPS}"
    )
    for string in given[:MOST_STOPS]:
        problems.require(
            isinstance(string, str) and 0 < len(string) <= LONGEST_STOP,
            f"each must have 1 to {LONGEST_STOP:,} characters, not {string!r:.60}",
        )
    problems.report()
    return given
