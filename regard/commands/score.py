"""`regard score`: how probable texts are to a run."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.text import Text

from regard.commands.printing import errors, finite, note_unknown, put
from regard.commands.texts import check_texts, given_texts, one_line
from regard.data.readers.pairs import Pair, read_pairs
from regard.decoding import scoring
from regard.decoding.text_model import TextModel
from regard.errors import Problems, RegardError
from regard.loading import text_model_of
from regard.models.config import Ability
from regard.runs.plan import device_for
from regard.runs.stored_run import open_run
from regard.text.invalid_utf8 import replace_invalid_utf8


@dataclass(frozen=True)
class Score:
    """Tell how probable texts are: log-probability, tokens and text, a line for each.

    Natural logarithms; the end of a text (</s>) counts, its beginning does not.

    $ regard score runs/notes "the cat sat" "sat the cat"
    $ regard score runs/notes --file notes.txt --json
    $ regard score runs/en-de --source en.txt --target de.txt
    $ cut -f 1,2 pairs.tsv | regard score runs/en-de
    """

    path: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """A run's folder."""
    texts: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(
            metavar="TEXT…",
            help="The texts; for runs on pairs each a source, a tab and a target.",
            help_behavior_hint="(default: the lines of standard input)",
        ),
    ] = ()
    file: Annotated[str, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = ""
    """A file with a text in each line."""
    source: Annotated[str, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = ""
    """For runs on pairs: a file with a source in each line."""
    target: Annotated[str, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = ""
    """For runs on pairs: a file with the target of each source."""
    device: Annotated[str, tyro.conf.arg(metavar="NAME")] = "auto"
    """cpu, cuda, or what there is."""
    json: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Print a JSON object for each text, with the log-probability of every token."""

    def run(self, console: Console) -> None:
        self._check()
        speaks = text_model_of(open_run(Path(self.path), device_for(self.device)))
        speaks.require(Ability.SCORE, who=self.path, what="score texts")
        if speaks.reads:
            pairs = self._pairs()
            sources, texts = [p.source for p in pairs], [p.target for p in pairs]
            scores = scoring.scored(speaks, texts, sources=sources)
        elif self.source:
            raise RegardError(
                f"--source and --target are for runs on pairs; {self.path} is on text"
            )
        else:
            sources, texts = [], given_texts(self.texts, self.file)
            scores = scoring.scored(speaks, texts)
        for index, (text, score) in enumerate(zip(texts, scores, strict=True)):
            if self.json:
                said = {"source": replace_invalid_utf8(sources[index])} if sources else {}
                said |= {"text": replace_invalid_utf8(text), **figures(speaks, score)}
                put(json.dumps(said, allow_nan=False) + "\n")
            else:
                put(
                    f"{score.logprob:.4f}\t{score.tokens}\t{one_line(replace_invalid_utf8(text))}\n"
                )
        _note_sums(scores)

    def _check(self) -> None:
        """What cannot be meant, before anything is loaded."""
        check_texts(self.texts, self.file)
        if bool(self.source) != bool(self.target):
            raise RegardError("--source and --target go together; give both files")
        if self.source and (self.texts or self.file):
            raise RegardError("give pairs as --source and --target or as lines, not both")

    def _pairs(self) -> list[Pair]:
        """Sources and targets as they were trained on: without blanks around them."""
        if self.source:
            found = list(read_pairs((self.source, self.target)))
            if not found:
                raise RegardError(f"there are no pairs in {self.source} and {self.target}")
        else:
            found = _columns(given_texts(self.texts, self.file))
        pairs = [Pair(*(replace_invalid_utf8(text).strip() for text in pair)) for pair in found]
        problems = Problems("score")
        for number, pair in enumerate(pairs, 1):
            problems.require(bool(pair.source), f"line {number} has an empty source")
        problems.report()
        return pairs


def _columns(given: Sequence[str]) -> list[Pair]:
    problems, pairs = Problems("score"), []
    for number, line in enumerate(given, 1):
        fields = line.split("\t")
        problems.require(
            len(fields) == 2,
            f"line {number} has {len(fields) - 1 or 'no'} tab{'s' * (len(fields) > 2)}; "
            "a pair is source, tab, target",
        )
        pairs.append(Pair(fields[0], fields[-1]))
    problems.report()
    return pairs


def figures(speaks: TextModel, score: scoring.Score) -> dict[str, Any]:
    """A score as JSON can hold it: null for what has no end."""
    pieces = [] if speaks.tokenizer is None else speaks.tokenizer.pieces(score.ids)
    return {
        "logprob": finite(score.logprob),
        "perplexity": finite(score.perplexity),
        "unknown": score.unknown,
        "ids": list(score.ids),
        "tokens": pieces,
        "logprobs": [finite(logprob) for logprob in score.logprobs],
    }


def _note_sums(scores: Sequence[scoring.Score]) -> None:
    """The figures of all texts together."""
    total = math.fsum(score.logprob for score in scores)
    tokens = sum(score.tokens for score in scores)
    note_unknown(sum(score.unknown for score in scores), f"the {tokens:,} tokens")
    mean = scoring.perplexity(total, tokens)
    said = f"total {total:.4f} nats, {tokens:,} tokens, perplexity {mean:,.2f} per token"
    errors().print(Text(said), soft_wrap=True)
