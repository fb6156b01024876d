"""`regard generate`: what a model writes behind a prompt, as it comes."""

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from regard.commands.names import STREAM, check_writable, standard_input
from regard.commands.printing import note, put
from regard.commands.trees import tree_file, tree_line
from regard.decoding.continuing import MOST_TEXTS, Continuation, Piece, Written
from regard.decoding.settings import Beam, Sampling
from regard.decoding.streaming import checked_stops
from regard.errors import RegardError
from regard.loading import Model, load
from regard.text.damage import mended
from regard.text.tokenizer import Tokenizer
from regard.training.setup import device_for

HELP = """Type a text and the model goes on from there; an empty line begins a new one.
The seed moves on each time, so the same line gives another text; Ctrl-C stops one.
  :temperature 0.5   changes a setting (as do :max-tokens, :top-k, :top-p, :min-p, :seed, …)
  :settings          shows them
  :quit              ends, as Ctrl-D does"""
CHANGEABLE: dict[str, type[int] | type[float]] = {
    "n": int,
    "max_tokens": int,
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "repetition_penalty": float,
    "seed": int,
    "beam": int,
    "length_penalty": float,
}


@dataclass(frozen=True)
class Generate:
    """Continue a text; a translator writes from it as its source.

    $ regard generate runs/notes "Once upon"         goes on from there
    $ regard generate runs/notes Once --n 3 --seed 7 three times: seeds 7, 8, 9
    $ echo Once | regard generate runs/notes --json --logprobs 5
    $ regard generate runs/notes                     asks for prompts
    """

    path: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """A run's folder."""
    prompt: Annotated[
        tyro.conf.Positional[str | None],
        tyro.conf.arg(metavar="PROMPT", help_behavior_hint="(default: standard input)"),
    ] = None
    """The text to go on from; - reads standard input, "" begins a text."""
    n: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """So many texts, side by side; the i-th is drawn with seed + i."""
    max_tokens: Annotated[int, tyro.conf.arg(metavar="N", aliases=["--tokens"])] = 200
    """At most so many are written, and no more than the model's context holds."""
    temperature: Annotated[float, tyro.conf.arg(metavar="T")] = 0.8
    """How freely tokens are drawn; 0 takes the most probable."""
    top_k: Annotated[int, tyro.conf.arg(metavar="N", aliases=["--top"])] = 0
    """Draw among so many of the most probable tokens; 0: all."""
    top_p: Annotated[float, tyro.conf.arg(metavar="P")] = 1.0
    """Draw among the most probable that together have this probability."""
    min_p: Annotated[float, tyro.conf.arg(metavar="P")] = 0.0
    """Draw among those with at least this share of the most probable one's."""
    repetition_penalty: Annotated[float, tyro.conf.arg(metavar="X")] = 1.0
    """Above 1, tokens that stand in the text already become less probable."""
    stop: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TEXT…", help_behavior_hint="")] = ()
    """End before any of these strings."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """What the draws follow from."""
    beam: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Search with so many beams instead of drawing, and print the --n best."""
    length_penalty: Annotated[float, tyro.conf.arg(metavar="X")] = 1.0
    """Beam search ranks by log-probability / tokens ** X."""
    tree: Annotated[str, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = ""
    """Write the candidates of the (last) beam search, step by step, to a file of JSON."""
    logprobs: Annotated[
        int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: none)")
    ] = None
    """Each token's log-probability, and so many of the most probable ones beside it."""
    draft: Annotated[str, tyro.conf.arg(metavar="RUN", help_behavior_hint="")] = ""
    """A smaller model of the same vocabulary that proposes tokens: faster, same distribution."""
    int8: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Weights in eight bits: smaller, on CPUs faster; `evaluate --int8` says what is lost."""
    json: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """One JSON object for each text, when all are written."""
    device: Annotated[str, tyro.conf.arg(metavar="NAME")] = "auto"
    """cpu, cuda, or what there is."""

    def run(self, console: Console) -> None:
        self._sampling()  # all that is wrong is told before anything is loaded
        checked_stops(self.stop)
        device = device_for(self.device)
        model = load(self.path, device, int8=self.int8, fast=True)
        model.speaker.require("decoder", "encoder-decoder")
        draft = load(self.draft, device, int8=self.int8, fast=True) if self.draft else None
        if self.prompt is None and sys.stdin.isatty():
            Conversation(self, model, draft).run()
            return
        piped = self.prompt is None or self.prompt == STREAM
        self.write(model, draft, standard_input() if piped else self.prompt or "")

    def write(self, model: Model, draft: Model | None, prompt: str) -> None:
        """One prompt's texts to standard output."""
        self._warn(model, prompt)
        if self.beam:
            self._show(model, prompt, self._searched(model, prompt))
            return
        stream = model.stream([prompt], self._sampling(), n=self.n, stop=self.stop, draft=draft)
        if self.json or self.logprobs is not None:
            self._show(model, prompt, stream.whole())
        else:
            self._print(stream, "" if model.speaker.reads else mended(prompt))
        if stream.acceptance is not None:
            note(f"the draft's proposals: {stream.acceptance:.1%} taken")

    def _sampling(self) -> Sampling:
        """The options as settings, which check themselves."""
        if self.beam < 0:
            raise RegardError(f"--beam must be 0 or more, not {self.beam}")
        if not 1 <= self.n <= MOST_TEXTS:
            raise RegardError(f"--n must be 1 to {MOST_TEXTS:,}, not {self.n}")
        if self.beam:
            self._beam()
        if self.tree and not self.beam:
            raise RegardError("--tree tells of a beam search; ask for one with --beam")
        if self.tree:
            check_writable(Path(self.tree))
        return Sampling(
            limit=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed,
            logprobs=self.logprobs,
        )

    def _beam(self) -> Beam:
        usual, drawing = Generate(self.path), ("temperature", "top_k", "top_p", "min_p", "seed")
        for name in (*drawing, "repetition_penalty", "logprobs", "draft", "stop"):
            if getattr(self, name) != getattr(usual, name):
                option = name.replace("_", "-")
                raise RegardError(f"--{option} is for drawing; a beam search (--beam) has none")
        return Beam(
            beams=self.beam,
            length_penalty=self.length_penalty,
            n_best=self.n,
            record=bool(self.tree),
        )

    def _searched(self, model: Model, prompt: str) -> list[Written]:
        if model.speaker.reads:
            raise RegardError("this model translates; `regard translate --beam` searches")
        found = model.generate([prompt], max_tokens=self.max_tokens, beam=self._beam())
        if self.tree:
            with tree_file(self.tree) as file:
                file.write(tree_line(model.tokenizer, 1, found[0].tree))
        return found

    def _warn(self, model: Model, prompt: str) -> None:
        """What a reader should know of the prompt."""
        tokenizer = model.tokenizer if not model.speaker.reads else model.source_tokenizer
        if model.speaker.reads and "\n" in prompt.strip():
            raise RegardError("a source is one line; `regard translate` takes a line for a line")
        if tokenizer is None:
            return
        ids = tokenizer.encode(prompt).tolist()
        if unknown := tokenizer.unknown(ids):
            note(f"{unknown:,} of the prompt's {len(ids):,} tokens are unknown to this run")

    def _print(self, stream: Continuation, before: str) -> None:
        """Write as it comes: the first text at once, the others in their turn."""
        for index, pieces in enumerate(in_turn(stream, self.n)):
            put(("---\n" if index else "") + before)
            end = None
            for piece in pieces:
                put(piece.text)
                end = piece.end
            put("\n")
            if end == "room":
                note("the model's context is full; a longer text needs a longer context")

    def _show(self, model: Model, prompt: str, texts: list[Written]) -> None:
        """Whole texts, with their tokens if asked for."""
        before = "" if model.speaker.reads else mended(prompt)
        for index, one in enumerate(texts):
            if self.json:
                facts = _facts(model.tokenizer, prompt, one)
                put(json.dumps(facts, ensure_ascii=False, allow_nan=False) + "\n")
                continue
            put(("---\n" if index else "") + before + one.text + "\n")
            if self.logprobs is not None and model.tokenizer is not None:
                put(_table(model.tokenizer, one))


def in_turn(stream: Continuation, texts: int) -> Iterator[Iterator[Piece]]:
    """The pieces of one text after the other, though all are written at the same time."""
    waiting: list[list[Piece]] = [[] for _ in range(texts)]
    coming = iter(stream)

    def pieces(row: int) -> Iterator[Piece]:
        while True:
            while waiting[row]:
                piece = waiting[row].pop(0)
                yield piece
                if piece.end is not None:
                    return
            new = next(coming, None)
            if new is None:
                return
            waiting[new.row].append(new)

    return (pieces(row) for row in range(texts))


def _facts(tokenizer: Tokenizer | None, prompt: str, one: Written) -> dict[str, Any]:
    """A text as JSON tells it."""
    facts: dict[str, Any] = {
        "prompt": mended(prompt),
        "text": one.text,
        "end": one.end,
        "ids": one.ids,
    }
    if one.logprob is not None:
        facts["logprob"] = one.logprob
    if one.score is not None:
        facts["score"] = one.score
    if tokenizer is not None and any(token.logprob is not None for token in one.tokens):
        facts["tokens"] = [
            {
                "piece": tokenizer.pieces([token.id])[0],
                "logprob": token.logprob,
                "top": [[tokenizer.pieces([other])[0], value] for other, value in token.top],
            }
            for token in one.tokens
        ]
    return facts


def _table(tokenizer: Tokenizer, one: Written) -> str:
    """A line for each token: its piece, its log-probability, and the favourites."""
    lines = []
    for token in one.tokens:
        top = "  ".join(f"{tokenizer.pieces([other])[0]} {value:.2f}" for other, value in token.top)
        lines.append(f"{tokenizer.pieces([token.id])[0]}\t{token.logprob:.4f}\t{top}".rstrip())
    return "\n".join(lines) + "\n"


@dataclass
class Conversation:
    """A small prompt on a terminal."""

    asked: Generate
    model: Model
    draft: Model | None

    def run(self) -> None:
        with suppress(ImportError):
            import readline  # noqa: F401  (arrow keys and history, where Python has it)
        print(HELP)
        while True:
            try:
                line = input("\n> ")
            except EOFError:
                print()
                return
            try:
                if line.strip() in (":quit", ":q", ":exit"):
                    return
                if line.startswith(":"):
                    self._command(line[1:].split())
                else:
                    self.asked.write(self.model, self.draft, line)
                    self.asked = replace(self.asked, seed=self.asked.seed + self.asked.n)
            except KeyboardInterrupt:  # enough of this text
                print()
            except RegardError as error:
                note(str(error))

    def _command(self, words: list[str]) -> None:
        known = {name.replace("_", "-"): name for name in CHANGEABLE}
        if words == ["settings"]:
            print(
                "  ".join(f"{shown}={getattr(self.asked, name)}" for shown, name in known.items())
            )
        elif len(words) == 2 and words[0] in known:
            changed = _changed(self.asked, known[words[0]], words[1])
            changed._sampling()
            self.asked = changed
        else:
            if words and words[0] != "help":
                note(f":{' '.join(words)} means nothing here")
            print(HELP)


def _changed(asked: Generate, name: str, value: str) -> Generate:
    try:
        change: Any = {name: CHANGEABLE[name](value)}
    except ValueError:
        raise RegardError(f"{name.replace('_', '-')} must be a number, not {value!r:.40}") from None
    return replace(asked, **change)
