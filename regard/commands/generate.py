"""`regard generate`: what a model writes behind a prompt, as it comes."""

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console

from regard.commands.arguments import STREAM, check_writable, option, standard_input
from regard.commands.printing import finite, line_of_its_own, note, note_unknown, put
from regard.commands.trees import tree_file, tree_line
from regard.decoding.decode_batch import Token
from regard.decoding.incremental_text import Spelling, checked_stops
from regard.decoding.settings import SEEDS, Beam, Sampling
from regard.decoding.streams import MOST_TEXTS, Completion, Delta, Stream
from regard.decoding.text_model import TextModel
from regard.errors import RegardError
from regard.loading import Model, load
from regard.models.config import Ability
from regard.models.kernels.int8 import quantise
from regard.runs.plan import device_for
from regard.text.invalid_utf8 import replace_invalid_utf8
from regard.text.tokenizer import Tokenizer

CONTINUES = "Type a text and the model goes on from there; an empty line begins a new one."
TRANSLATES = "Type a line and the model writes from it as its source."
HELP = """The seed moves on each time, so the same line gives another text; Ctrl-C stops one.
  :temperature 0.5   changes a setting (as do :max-tokens, :top-k, :top-p, :n, :beam, :seed, …)
  :temperature       shows one
  :settings          shows all
  :quit              ends, as Ctrl-D does
A text that begins with a colon is typed with two."""
USUAL: dict[str, Any] = {  # where nothing is said, which is not the same as saying this
    "temperature": 0.8,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "seed": 0,
    "length_penalty": 1.0,
}
SEARCHING = ("length_penalty",)
DRAWING = tuple(name for name in USUAL if name not in SEARCHING)
TRANSLATED = "this model translates; `regard translate --beam` searches"
FULL = "the model's context is full; a longer text needs a longer context"
ONLY_DRAWN = "is for drawing; a beam search (--beam) has none"
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


def _usual(name: str, metavar: str, *aliases: str) -> Any:
    """An option that is None unless it was typed."""
    hint = f"(default: {USUAL[name]})"
    return tyro.conf.arg(metavar=metavar, aliases=aliases or None, help_behavior_hint=hint)


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
    """The text to go on from; - reads standard input, "" begins a text; behind -- it may begin
    with -."""
    n: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """So many texts, side by side; the i-th is drawn with seed + i."""
    max_tokens: Annotated[int, tyro.conf.arg(metavar="N", aliases=["--tokens"])] = 200
    """At most so many are written, and no more than the model's context holds."""
    temperature: Annotated[float | None, _usual("temperature", "T")] = None
    """How freely tokens are drawn; 0 takes the most probable."""
    top_k: Annotated[int | None, _usual("top_k", "N", "--top")] = None
    """Draw among so many of the most probable tokens; 0: all."""
    top_p: Annotated[float | None, _usual("top_p", "P")] = None
    """Draw among the most probable that together have this probability."""
    min_p: Annotated[float | None, _usual("min_p", "P")] = None
    """Draw among those with at least this share of the most probable one's."""
    repetition_penalty: Annotated[float | None, _usual("repetition_penalty", "X")] = None
    """Above 1, tokens that stand in the text already become less probable."""
    stop: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        tyro.conf.arg(metavar="TEXT", help_behavior_hint="(may be repeated)"),
    ] = ()
    """End before this string."""
    seed: Annotated[int | None, _usual("seed", "N")] = None
    """What the draws follow from."""
    beam: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Search with so many beams instead of drawing, and print the --n best."""
    length_penalty: Annotated[float | None, _usual("length_penalty", "X")] = None
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
    """Weights in eight bits: smaller, on CPUs faster; `evaluate --int8` says what is lost.
    A draft's too, if it is a Transformer."""
    json: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """One JSON object for each text, when all are written."""
    device: Annotated[str, tyro.conf.arg(metavar="NAME")] = "auto"
    """cpu, cuda, or what there is."""

    def run(self, console: Console) -> None:
        asked = self.settled()  # all that is wrong is told before anything is loaded
        asked.check()
        checked_stops(self.stop)
        device = device_for(self.device)
        model = load(self.path, device, int8=self.int8, fast=True)
        model.speaker.require(
            Ability.CONTINUE, Ability.TRANSLATE, who=self.path, what="write texts"
        )
        model.speaker.require_text(self.path)
        draft = self._draft(model.speaker, device) if self.draft else None
        if self.prompt is None and sys.stdin.isatty() and sys.stdout.isatty():
            Conversation(asked, model, draft).run()
            return
        piped = self.prompt is None or self.prompt == STREAM
        asked.write(model, draft, standard_input() if piped else self.prompt or "")

    def _draft(self, speaker: TextModel, device: torch.device) -> Model:
        """The model that proposes; in eight bits too, if it is a Transformer."""
        draft = load(self.draft, device, fast=not self.int8)
        what = f"draft for {self.path}"
        needed = speaker.module.config.abilities & {Ability.CONTINUE, Ability.TRANSLATE}
        draft.speaker.require(*needed, who=self.draft, what=what)
        speaker.require_words_of(draft.speaker, f"the draft {self.draft}")
        if self.int8 and Ability.CONVERT in draft.config.abilities:
            return replace(draft, module=quantise(draft.module, keep=False))
        return draft

    def settled(self) -> "Generate":
        """The same with nothing left unsaid; refuses what was said in vain."""
        vain: tuple[str, ...] = SEARCHING
        why = "is for beam search; give --beam too"
        if self.beam > 0:
            vain, why = DRAWING, ONLY_DRAWN
        for name in vain:
            if getattr(self, name) is not None:
                raise RegardError(f"{option(name)} {why}")
        unsaid = {name: usual for name, usual in USUAL.items() if getattr(self, name) is None}
        return replace(self, **unsaid)

    def check(self) -> None:
        """Refuse what cannot be, or not together; of settled options only."""
        if self.beam < 0:
            raise RegardError(f"--beam must be 0 or more, not {self.beam}")
        if not 1 <= self.n <= MOST_TEXTS:
            raise RegardError(f"--n must be 1 to {MOST_TEXTS:,}, not {self.n}")
        if self._sampling().seed + self.n > SEEDS:
            raise RegardError(
                f"--seed must be {SEEDS - self.n} or less with --n {self.n}: the last text's seed, "
                "seed + n - 1, must be below 2 ** 63"
            )
        if self.tree and not self.beam:
            raise RegardError("--tree tells of a beam search; ask for one with --beam")
        if self.tree:
            check_writable(Path(self.tree), STREAM)
        if not self.beam:
            return
        for name in ("logprobs", "draft", "stop"):
            if getattr(self, name) not in (None, "", ()):
                raise RegardError(f"{option(name)} {ONLY_DRAWN}")
        self._searching()

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
            self._print(stream, before(model, prompt))
        if stream.acceptance is not None:
            note(f"the draft's proposals: {stream.acceptance:.1%} taken")
        elif draft is not None:
            note("the draft proposed nothing: there was no room for it, or no token to propose")

    def _sampling(self) -> Sampling:
        """The options as settings, which check themselves."""
        drawing = {name: getattr(self, name) for name in DRAWING}
        return Sampling(self.max_tokens, logprobs=self.logprobs, named=option, **drawing)

    def _searching(self) -> Beam:
        searching = {name: getattr(self, name) for name in SEARCHING}
        record = bool(self.tree)
        return Beam(self.beam, n_best=self.n, record=record, named=option, **searching)

    def _searched(self, model: Model, prompt: str) -> list[Completion]:
        if model.speaker.reads:
            raise RegardError(TRANSLATED)
        found = model.generate([prompt], max_tokens=self.max_tokens, beam=self._searching())
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
        note_unknown(tokenizer.unknown(ids), f"the prompt's {len(ids):,} tokens")

    def _print(self, stream: Stream, shown: str) -> None:
        """Write as it comes: the first text at once, the others in their turn."""
        for index, pieces in enumerate(in_turn(stream, self.n)):
            put(("---\n" if index else "") + shown)
            end = None
            with line_of_its_own():
                for piece in pieces:
                    put(piece.text)
                    end = piece.end
            put("\n")
            if end == "room":
                note(FULL)

    def _show(self, model: Model, prompt: str, texts: list[Completion]) -> None:
        """Whole texts, with their tokens if asked for."""
        shown = before(model, prompt)
        for index, one in enumerate(texts):
            if self.json:
                given = replace_invalid_utf8(prompt) if model.speaker.reads else shown
                facts = _facts(model.tokenizer, given, one)
                put(json.dumps(facts, ensure_ascii=False, allow_nan=False) + "\n")
                continue
            put(("---\n" if index else "") + shown + one.text + "\n")
            if self.logprobs is not None and model.tokenizer is not None:
                put(_table(model.tokenizer, one))
        if any(one.end == "room" for one in texts):
            note(FULL)


def before(model: Model, prompt: str) -> str:
    """What is shown before a text; a character that the prompt leaves off in stands in the text."""
    if model.speaker.reads or model.tokenizer is None:
        return ""
    held = Spelling(model.tokenizer, model.speaker.ids(prompt), prompt).held
    return replace_invalid_utf8(prompt[: len(prompt) - held])


def in_turn(stream: Stream, texts: int) -> Iterator[Iterator[Delta]]:
    """The pieces of one text after the other, though all are written at the same time."""
    waiting: list[list[Delta]] = [[] for _ in range(texts)]
    coming = iter(stream)

    def pieces(row: int) -> Iterator[Delta]:
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


def _facts(tokenizer: Tokenizer | None, prompt: str, one: Completion) -> dict[str, Any]:
    """A text as JSON tells it."""
    facts: dict[str, Any] = {
        "prompt": prompt,
        "text": one.text,
        "end": one.end,
        "ids": one.ids,
    }
    if one.logprob is not None:
        facts["logprob"] = finite(one.logprob)
    if one.score is not None:
        facts["score"] = finite(one.score)
    if tokenizer is not None and any(token.logprob is not None for token in one.tokens):
        facts["tokens"] = [
            {
                "piece": tokenizer.pieces([token.id])[0],
                "logprob": None if token.logprob is None else finite(token.logprob),
                "top": [[piece, finite(value)] for piece, value in _rivals(tokenizer, token)],
            }
            for token in one.tokens
        ]
    return facts


def _rivals(tokenizer: Tokenizer, token: Token) -> list[tuple[str, float]]:
    """The most probable tokens where this one stands: their pieces and log-probabilities."""
    return [(tokenizer.pieces([other])[0], value) for other, value in token.top]


def _table(tokenizer: Tokenizer, one: Completion) -> str:
    """A line for each token: its piece, its log-probability, and the favourites."""
    lines = []
    for token in one.tokens:
        top = "  ".join(f"{piece} {value:.2f}" for piece, value in _rivals(tokenizer, token))
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
        self._help()
        while True:
            try:
                line = input("\n> ")
            except EOFError:
                print()
                return
            except KeyboardInterrupt:  # the line is taken back
                continue
            if line.strip() in (":quit", ":q", ":exit"):
                return
            try:
                if line.startswith(":") and not line.startswith("::"):
                    self._command(line[1:].split())
                else:
                    self._answer(line.removeprefix(":"))
            except RegardError as error:
                note(str(error))

    def _help(self) -> None:
        print(TRANSLATES if self.model.speaker.reads else CONTINUES)
        print(HELP)

    def _answer(self, line: str) -> None:
        try:
            self.asked.write(self.model, self.draft, line)
        except KeyboardInterrupt:  # enough of this text
            print()
        assert self.asked.seed is not None
        following = self.asked.seed + self.asked.n
        self.asked = replace(self.asked, seed=following if following + self.asked.n <= SEEDS else 0)

    def _command(self, words: list[str]) -> None:
        known = {name.replace("_", "-"): name for name in CHANGEABLE}
        shown = {said: f"{said}={getattr(self.asked, name)}" for said, name in known.items()}
        known |= {"tokens": "max_tokens", "top": "top_k"}  # as they may be typed
        if words == ["settings"]:
            print("  ".join(shown.values()))
        elif len(words) == 1 and words[0] in known:
            print(shown[known[words[0]].replace("_", "-")])
        elif len(words) == 2 and words[0] in known:
            changed = _changed(self.asked, known[words[0]], words[1])
            changed.check()
            if changed.beam and self.model.speaker.reads:
                raise RegardError(TRANSLATED)
            self.asked = changed
        else:
            if words and words[0] != "help":
                note(f":{' '.join(words)} means nothing here")
            self._help()


def _changed(asked: Generate, name: str, value: str) -> Generate:
    try:
        change: Any = {name: CHANGEABLE[name](value)}
    except ValueError:
        raise RegardError(f"{name.replace('_', '-')} must be a number, not {value!r:.40}") from None
    return replace(asked, **change)
