"""What others wrote, on its way to a terminal: spelled out where it would be obeyed, and bounded.

Names of files, settings, captions and training data may have come from anybody. Every console and
every message of Regard passes here, where it is shown, so that no place that tells of something has
to think of it.
"""

import unicodedata

BULLET = "\n  - "  # before each of several problems
LISTED = 40  # problems named one by one, a screen of them; the others are counted
LONGEST, WHOLE = 1000, 8000  # characters of a message's line, and of all its lines


def literal(text: object, encoding: str = "utf-8") -> str:
    """Text as it is, but what a terminal would obey or cannot show is spelled out: `\\x1b`."""
    kept = (
        c
        if c.isprintable() or c in "\n\u200c\u200d" or unicodedata.category(c) == "Zs"
        else _hex(c)
        for c in str(text)
    )
    return "".join(kept).encode(encoding, "backslashreplace").decode(encoding)


def in_one_line(text: object) -> str:
    """Such a text with newlines spelled out too, so that nothing looks like a line of ours."""
    return literal(text).replace("\n", "\\n")


def message(sentence: str) -> str:
    """A message as it is shown: each problem in a line, the endless cut, the many counted."""
    subject, *problems = sentence.split(BULLET)
    if len(problems) > LISTED + 1:
        problems[LISTED:] = [f"and {len(problems) - LISTED:,} more"]
    # Cut before it is spelled out too, which would take minutes for the content of a file.
    lines = [cut(in_one_line(cut(line, LONGEST)), LONGEST) for line in (subject, *problems)]
    most = LONGEST if sum(map(len, lines)) <= WHOLE else WHOLE // len(lines)
    return BULLET.join(cut(line, most) for line in lines)


def cut(text: str, most: int) -> str:
    """A text of at most so many characters: the middle of a longer one is left out."""
    if len(text) <= most:
        return text
    begin = 2 * most // 3
    return f"{text[:begin]} … {text[begin + 3 - most :]}"


def _hex(character: str) -> str:
    return character.encode("unicode_escape").decode()
