"""Commands as a person calls them, in this process."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple
from unittest import mock

from regard.cli import main

QUICK = ("training.tokens_per_step=256", "training.context=32", "training.sample_every=-1")


class Said(NamedTuple):
    code: int
    out: str
    err: str


def call(*arguments: object, stdin: bytes = b"") -> Said:
    """Exit code, output and errors of one command."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    given = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    code = 0
    with redirect_stdout(out), redirect_stderr(err), mock.patch.object(sys, "stdin", given):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else 0
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode("utf-8"))
    return Said(code, *texts)


def trained(folder: object, *arguments: object, steps: int = 3, settings: tuple = ()) -> Said:
    """Train a tiny run into a folder."""
    said = call("train", *arguments, "--out", folder, "--steps", steps, "--set", *QUICK, *settings)
    assert said.code == 0, said.err
    return said


def mistake(said: Said) -> str:
    """The one sentence that a wrong command line gets; nothing else was printed."""
    assert said.code == 2
    assert said.err.startswith("error: ")
    assert "Traceback" not in said.err
    return said.err
