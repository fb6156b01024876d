"""The candidates of beam searches, step by step, as lines of JSON (`--tree FILE`)."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from regard.decoding.search.beam import Candidate
from regard.text.tokenizer import Tokenizer


def tree_file(path: str) -> TextIO:
    """An empty file for such lines, and the folders that lead to it."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return open(path, "w", encoding="utf-8")


def tree_line(tokenizer: Tokenizer | None, number: int, tree: list[list[Candidate]] | None) -> str:
    """The search for line `number`; one that there was none for has no steps."""
    steps = [[_candidate(tokenizer, one) for one in step] for step in tree or []]
    return json.dumps({"line": number, "steps": steps}) + "\n"


def _candidate(tokenizer: Tokenizer | None, one: Candidate) -> dict[str, Any]:
    piece = {} if tokenizer is None else {"piece": tokenizer.pieces([one.token])[0]}
    return {**asdict(one), **piece}
