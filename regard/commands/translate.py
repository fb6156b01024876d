"""`regard translate`: a file or standard input, line by line, in order."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, TextIO

import tyro
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from regard.commands.arguments import STREAM, check_printed, check_writable, option
from regard.commands.printing import errors, note, note_unknown, put
from regard.commands.texts import check_plain, in_parts, is_live, one_line
from regard.commands.trees import tree_file, tree_line
from regard.data.readers import files
from regard.decoding.search.ensemble import together
from regard.decoding.settings import Beam, Sampling, require_whole
from regard.decoding.streams import MOST_TEXTS
from regard.decoding.text_model import TextModel
from regard.decoding.translation import (
    WINDOW,
    Translation,
    check_sources,
    least_risky,
    translated,
    without_problems,
)
from regard.errors import Problems, RegardError
from regard.loading import load
from regard.models.config import Ability
from regard.runs.plan import device_for


@dataclass(frozen=True)
class Translate:
    """Translate a file, or standard input, line by line, by beam search.

    $ regard translate runs/en-de news.en > news.de
    $ echo "a dog runs" | regard translate runs/en-de --n-best 3
    $ regard translate runs/en-de news.en --alignments --scores
    """

    path: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """A run's folder."""
    file: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: standard input)"),
    ] = STREAM
    """One text a line."""
    beam: Annotated[int, tyro.conf.arg(metavar="N")] = 5
    """Hypotheses kept; 1 is greedy."""
    length_penalty: Annotated[float, tyro.conf.arg(metavar="X")] = 1.0
    """Hypotheses are ranked by log-probability / tokens ** X."""
    coverage_penalty: Annotated[float, tyro.conf.arg(metavar="X")] = 0.0
    """How much it counts that a part of the source was never looked at."""
    n_best: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """So many for each line: the line's number, TAB, score, TAB, text."""
    scores: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """The score, and a TAB, before each translation; of --mbr its mean chrF."""
    alignments: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Behind each, and a TAB: SOURCE-TARGET positions of tokens, from 0, where each looked most;
    the source's last token is its </s>."""
    prefix: Annotated[str, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")] = ""
    """How every translation must begin."""
    max_tokens: Annotated[
        int, tyro.conf.arg(metavar="N", help_behavior_hint="(default: 1.5 × the source + 10)")
    ] = 0
    """At most so many are written for a line."""
    mbr: Annotated[int, tyro.conf.arg(metavar="N", help_behavior_hint="")] = 0
    """Draw N translations and take the one that agrees best with all (minimum Bayes risk, chrF)."""
    temperature: Annotated[float, tyro.conf.arg(metavar="T")] = 1.0
    """How freely --mbr draws."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """What --mbr's draws follow from."""
    ensemble: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        tyro.conf.arg(metavar="RUN", help_behavior_hint="(may be repeated)"),
    ] = ()
    """One more run with the same vocabulary; the mean of all runs' probabilities counts."""
    tree: Annotated[str, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = ""
    """Write each search's candidates, step by step, to a file of JSON lines."""
    batch_size: Annotated[int, tyro.conf.arg(metavar="N")] = 32
    """Lines computed at once, of about the same length."""
    int8: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Weights in eight bits: smaller, on CPUs faster."""
    json: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """A JSON object for each line, with tokens, scores and, if asked for, attention weights."""
    device: Annotated[str, tyro.conf.arg(metavar="NAME")] = "auto"
    """cpu, cuda, or what there is."""

    def run(self, console: Console) -> None:
        beam, sampling = self._settings()
        speaker = self._speaker()
        speaker.beginning(self.prefix, "translation")  # or <unk> would be forced
        where = "standard input" if self.file == STREAM else self.file
        check_printed(self.file)
        if self.file != STREAM:
            _check_file(self.file)
        self._check_lines(speaker, where)
        with ExitStack() as stack:
            parts = _some(self._parts(where), where)
            told = stack.enter_context(_progress())
            trees: TextIO | None = None
            tokens = unknown = cut = 0
            for number, found in enumerate(self._found(speaker, parts, beam, sampling, told), 1):
                self._print(speaker, number, found)
                if self.tree:  # an older file stays until there is something to write
                    trees = trees or stack.enter_context(tree_file(self.tree))
                    trees.write(tree_line(speaker.tokenizer, number, found[0].tree))
                source = found[0].source[:-1]  # without its end
                tokens, unknown = tokens + len(source), unknown + speaker.unknown(source)
                cut += found[0].end == "limit"
        note_unknown(unknown, f"the sources' {tokens:,} tokens")
        if cut:
            note(f"{cut:,} of {number:,} translations were cut off at their limit (--max-tokens)")

    def _settings(self) -> tuple[Beam, Sampling]:
        """All that is wrong with the options, before anything is loaded."""
        problems = Problems("translate")
        problems.require(
            self.batch_size > 0, f"--batch-size must be at least 1, not {self.batch_size}"
        )
        problems.require(
            self.max_tokens >= 0, f"--max-tokens must not be negative: {self.max_tokens}"
        )
        require_whole(problems, "--mbr", self.mbr, 0, MOST_TEXTS)
        usual = Translate(self.path)
        searching = ("beam", "length_penalty", "coverage_penalty", "n_best", "alignments", "prefix")
        for name in (*searching, "tree") if self.mbr else ("temperature", "seed"):
            problems.require(
                getattr(self, name) == getattr(usual, name),
                f"{option(name)} is for "
                + (
                    "beam search; --mbr draws" if self.mbr else "--mbr; a beam search draws nothing"
                ),
            )
        problems.report()
        if self.tree:
            check_writable(Path(self.tree), self.file)
        beam = Beam(
            beams=self.beam,
            length_penalty=self.length_penalty,
            coverage_penalty=self.coverage_penalty,
            n_best=self.n_best,
            attention=self.alignments,
            record=bool(self.tree),
            named=option,
        )
        drawn = Sampling(
            self.max_tokens, temperature=self.temperature, seed=self.seed, named=option
        )
        return beam, drawn

    def _speaker(self) -> TextModel:
        device = device_for(self.device)
        model = load(self.path, device, int8=self.int8, fast=True)
        model.speaker.require(Ability.TRANSLATE, who=self.path, what="translate")
        model.speaker.require_text(self.path)
        if not self.ensemble:
            return model.speaker
        others = [load(path, device, int8=self.int8, fast=True) for path in self.ensemble]
        for path, other in zip(self.ensemble, others, strict=True):
            other.speaker.require(Ability.TRANSLATE, who=path, what="translate")
        names = [self.path, *self.ensemble]
        return together([model.speaker, *(other.speaker for other in others)], names)

    def _check_lines(self, speaker: TextModel, where: str) -> None:
        """What would stop the work late stops it before it begins, where all is there already."""
        if self.file != STREAM:
            if os.path.isfile(self.file):
                check_sources(speaker, files.lines(Path(self.file)))
        elif not is_live(file := sys.stdin.buffer):
            begin = file.tell()
            check_sources(speaker, chain(*in_parts(file, self.batch_size * WINDOW, where)))
            file.seek(begin)

    def _parts(self, where: str) -> Iterator[list[str]]:
        """The lines to translate: of a file in full parts, of a pipe as they come."""
        most = self.batch_size * WINDOW
        if self.file == STREAM:
            if sys.stdin.isatty():
                note("type lines to translate; Ctrl-D ends")
            yield from in_parts(sys.stdin.buffer, most, where)
        elif os.path.isfile(self.file):
            coming = files.lines(Path(self.file))
            while part := list(islice(coming, most)):
                yield part
        else:
            with open(self.file, "rb") as file:
                yield from in_parts(file, most, where)

    def _found(
        self,
        speaker: TextModel,
        parts: Iterable[list[str]],
        beam: Beam,
        sampling: Sampling,
        told: Callable[[list[Translation]], None],
    ) -> Iterator[list[Translation]]:
        first = 1
        for part in parts:
            good = part[: without_problems(speaker, part)]  # what comes before a bad line is done
            common: dict[str, Any] = {"rows": self.batch_size, "first": first}
            if self.mbr:
                for found in least_risky(speaker, good, sampling, samples=self.mbr, **common):
                    told(found)
                    yield found
            else:
                common |= {"limit": self.max_tokens, "prefix": self.prefix, "told": told}
                yield from translated(speaker, good, beam, **common)
            if len(good) < len(part):
                check_sources(speaker, part, first)
            first += len(part)

    def _print(self, speaker: TextModel, number: int, found: list[Translation]) -> None:
        if self.json:
            put(json.dumps(_facts(speaker, number, found), ensure_ascii=False) + "\n")
            return
        for one in found:
            columns = [str(number)] if self.n_best > 1 else []
            columns += [f"{one.score:.4f}"] if self.scores or self.n_best > 1 else []
            columns.append(one_line(one.text).replace("\t", " "))
            columns += [" ".join(pharaoh(one))] if self.alignments else []
            put("\t".join(columns) + "\n")


def _check_file(name: str) -> None:
    """Refuse what has no lines; pipes and devices may have some."""
    if os.path.isdir(name):
        raise RegardError(f"{name} is a folder; name a text file, or {STREAM} for standard input")
    if not os.path.exists(name):
        raise RegardError(f"there is no file {name}; to translate a text, pipe it in")
    if os.path.isfile(name):
        check_plain(Path(name))


def _some(parts: Iterable[list[str]], where: str) -> Iterator[list[str]]:
    """The same parts, of which there must be one."""
    empty = True
    for part in parts:
        empty = False
        yield part
    if empty:
        raise RegardError(f"there is no text in {where}")


def pharaoh(one: Translation) -> list[str]:
    """SOURCE-TARGET for each target token: the source token it looked at most."""
    if one.attention is None:
        return []
    most = one.attention[: len(one.ids)].argmax(-1).tolist()
    return [f"{source}-{target}" for target, source in enumerate(most)]


def _facts(speaker: TextModel, number: int, found: list[Translation]) -> dict[str, Any]:
    """What was found for one line, as JSON tells it."""
    target, source = speaker.tokenizer, speaker.source_tokenizer
    return {
        "line": number,
        "source": source.pieces(found[0].source) if source is not None else found[0].source,
        "translations": [
            {
                "text": one.text,
                "tokens": target.pieces(one.ids) if target is not None else one.ids,
                "logprob": one.logprob,
                "score": one.score,
                "end": one.end,
                **({} if one.attention is None else {"attention": one.attention.tolist()}),
            }
            for one in found
        ],
    }


@contextmanager
def _progress() -> Iterator[Callable[[list[Translation]], None]]:
    """Lines and tokens a second, on a terminal's standard error."""
    console = errors()
    if not console.is_terminal or sys.stdout.isatty():
        yield lambda best: None
        return
    count, rate = TextColumn("{task.completed:,} lines"), TextColumn("{task.fields[rate]}")
    begin, written = time.perf_counter(), 0
    # Else standard output would be printed to where the progress is.
    apart: dict[str, Any] = {"redirect_stdout": False, "redirect_stderr": False}
    columns = SpinnerColumn(), count, rate, TimeElapsedColumn()
    with Progress(*columns, console=console, **apart) as progress:
        task = progress.add_task("", total=None, rate="")

        def told(best: list[Translation]) -> None:
            nonlocal written
            written += sum(len(one.ids) + 1 for one in best)
            speed = written / (time.perf_counter() - begin)
            progress.update(task, advance=len(best), rate=f"{speed:,.0f} tokens/s")

        yield told
