"""`regard generate`: what a run writes."""

import codecs
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console
from rich.text import Text

from regard.commands.names import STREAM, standard_input
from regard.data.batch import padded
from regard.data.pairs import EncodedPairs, Pair, encode_pairs
from regard.decoding.beam import translate
from regard.decoding.sampling import continued
from regard.errors import Problems, RegardError
from regard.text.damage import mended
from regard.text.specials import BOS, EOS, MASK, SPECIALS
from regard.text.tokenizer import Tokenizer
from regard.training.formats import literal
from regard.training.runs import Run, open_run
from regard.training.setup import device_for

USUAL = 200  # tokens of a text that is continued
SEEDS = 1 << 63


@dataclass(frozen=True)
class Generate:
    """Continue a text, translate one, or fill its <mask>s, as the run was trained to.

    $ regard generate runs/notes "Once upon"       goes on from there
    $ regard generate runs/en-de - < en.txt        translates line by line
    $ regard generate runs/gaps "the <mask> sat"   fills the gaps
    """

    path: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """A run's folder."""
    prompt: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(metavar="PROMPT", help_behavior_hint="(default: the start of a text)"),
    ] = ""
    """The text to go on from; - reads standard input."""
    tokens: Annotated[
        int,
        tyro.conf.arg(
            metavar="N", help_behavior_hint="(default: 200; translating, by the source's length)"
        ),
    ] = 0
    """At most so many are written, and no more than the model's context holds."""
    temperature: Annotated[float, tyro.conf.arg(metavar="T")] = 0.8
    """How freely tokens are drawn; 0 takes the most probable."""
    top: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Draw among so many of the most probable tokens; 0: all."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """What the draws follow from."""
    beam: Annotated[int, tyro.conf.arg(metavar="N")] = 5
    """Translating: hypotheses kept; 1 is greedy."""
    device: Annotated[str, tyro.conf.arg(metavar="NAME")] = "auto"
    """cpu, cuda, or what there is."""

    def run(self, console: Console) -> None:
        self._check()
        run = open_run(Path(self.path), device_for(self.device))
        prompt = standard_input() if self.prompt == STREAM else self.prompt
        if run.config.kind == "decoder":
            self._continue(run, prompt)
        elif run.config.kind == "encoder":
            _print(filled(run, prompt) + "\n")
        else:
            self._translate(run, prompt)

    def _check(self) -> None:
        """All that is wrong with the options, before anything is loaded or written."""
        problems = Problems("generate")
        for name in ("tokens", "temperature", "top", "seed"):
            value = getattr(self, name)
            problems.require(value >= 0, f"--{name} must not be negative, but is {value}")
        problems.require(self.temperature < float("inf"), "--temperature must be finite")
        problems.require(self.seed < SEEDS, f"--seed must be below {SEEDS}")
        problems.require(self.beam > 0, f"--beam must be at least 1, not {self.beam}")
        problems.report()

    def _continue(self, run: Run, prompt: str) -> None:
        """Write as it comes; only whole characters are printed."""
        ids = run.tokenizer.encode(prompt).tolist()
        limit = self.tokens or USUAL
        kept = max(run.config.context - limit, run.config.context // 2, 1)
        if len(ids) > kept:
            _note(f"the prompt has {len(ids):,} tokens; the model goes on from the last {kept:,}")
        if unknown := run.tokenizer.unknown(ids):
            _note(f"{unknown:,} of the prompt's {len(ids):,} tokens are unknown to this run")
        written = continued(
            run.module, ids, limit, temperature=self.temperature, top=self.top, seed=self.seed
        )
        _print(mended(prompt))
        for text in characters(follow(run.tokenizer, ids, prompt, written)):
            _print(text)
        _print("\n")

    def _translate(self, run: Run, prompt: str) -> None:
        """A line for a line; an empty one stays empty."""
        lines = [mended(line).strip() for line in prompt.split("\n")]
        if not any(lines):
            raise RegardError("there is nothing to translate; give a text, or - to read one")
        given = [line for line in lines if line]
        pairs = encode_pairs(
            [Pair(line, "") for line in given], run.source_tokenizer, run.tokenizer
        )
        _check_lengths(run, lines, pairs)
        sources = iter(pairs.sources)
        device = run.module.embed.tokens.weight.device
        for line in lines:
            if line:
                source, lengths = padded([next(sources)])
                (found,) = translate(
                    run.module,
                    source.to(device),
                    lengths.to(device),
                    beams=self.beam,
                    limit=self.tokens,
                )
                _print(run.tokenizer.decode(found).replace("\n", " "))
            _print("\n")


def _check_lengths(run: Run, lines: Sequence[str], pairs: EncodedPairs) -> None:
    """Say which lines are too long before any is translated."""
    problems = Problems("generate")
    sources = iter(pairs.sources)
    for number, line in enumerate(lines, 1):
        size = len(next(sources)) if line else 0
        problems.require(
            size <= run.config.context,
            f"line {number} has {size:,} tokens; this model reads at most {run.config.context:,}",
        )
    problems.report()


def follow(
    tokenizer: Tokenizer, ids: Sequence[int], prompt: str, written: Iterable[int]
) -> Iterator[bytes]:
    """The bytes of each written token, as they stand behind the prompt and one another."""
    before = [token for token in ids if token >= len(SPECIALS)][-1:]  # where words are joined
    blank = prompt[-1:].isspace()
    for token in written:
        joined = tokenizer.decode_bytes([*before, token])[len(tokenizer.decode_bytes(before)) :]
        yield joined.removeprefix(b" ") if blank and tokenizer.kind == "word" else joined
        before, blank = [token], False


def characters(stream: Iterable[bytes]) -> Iterator[str]:
    """Bytes as text, each character when all of it is there; what is no UTF-8 as U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for some in stream:
        yield decoder.decode(some)
    yield decoder.decode(b"", final=True)


@torch.inference_mode()
def filled(run: Run, text: str) -> str:
    """The text with the most probable token at each <mask>."""
    mask = SPECIALS[MASK]
    if mask not in text:
        raise RegardError(f'this run fills gaps: write {mask} where one is, e.g. "the {mask} sat"')
    parts = text.split(mask)
    if run.tokenizer.kind == "bpe":  # whose tokens begin with their blank: it is in the gap too
        parts = [*(part.removesuffix(" ") for part in parts[:-1]), parts[-1]]
    encoded = [run.tokenizer.encode(part).tolist() for part in parts]
    ids = [BOS, *encoded[0], *chain(*([MASK, *part] for part in encoded[1:])), EOS]
    if len(ids) > run.config.context:
        raise RegardError(
            f"the text has {len(ids):,} tokens; this model reads at most {run.config.context:,}"
        )
    tokens = torch.tensor([ids], device=run.module.embed.tokens.weight.device)
    logits = run.module(tokens)[0]  # (positions, vocabulary)
    logits[:, : len(SPECIALS)] = -torch.inf
    gaps = logits[tokens[0] == MASK].argmax(-1).tolist()
    pieces = [part.encode("utf-8", "surrogateescape") for part in parts]
    fills = [run.tokenizer.decode_bytes([gap]) for gap in gaps]
    whole = pieces[0] + b"".join(chain(*zip(fills, pieces[1:], strict=True)))
    return whole.decode("utf-8", "replace")


def _print(text: str) -> None:
    """Write at once; what a terminal would obey is spelled out on one."""
    if sys.stdout.isatty():
        text = "\t".join(literal(part) for part in text.split("\t"))
    sys.stdout.write(text)
    sys.stdout.flush()


def _note(sentence: str) -> None:
    console = Console(stderr=True)
    console.print(Text(f"note: {sentence}", "yellow"), soft_wrap=not console.is_terminal)
