"""`regard generate`: what a run writes."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console
from rich.text import Text

from regard.data.batch import padded
from regard.data.pairs import Pair, encode_pairs
from regard.decoding.beam import translate
from regard.decoding.sampling import continued
from regard.errors import RegardError
from regard.text.specials import BOS, EOS, MASK, SPECIALS
from regard.training.runs import Run, open_run
from regard.training.setup import device_for


@dataclass(frozen=True)
class Generate:
    """Continue a text, translate one, or fill its <mask>s, by what the run was trained for."""

    path: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """A run's folder."""
    prompt: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PROMPT")] = ""
    """The text to go on from; - reads standard input."""
    tokens: int = 200
    """At most so many are written."""
    temperature: float = 0.8
    """How freely tokens are drawn; 0 takes the most probable."""
    top: int = 0
    """Draw among so many of the most probable tokens; 0: all."""
    seed: int = 0
    """What the draws follow from."""
    beam: int = 5
    """Translating: hypotheses kept; 1 is greedy."""
    device: str = "auto"
    """cpu, cuda, or what there is."""

    def run(self, console: Console) -> None:
        run = open_run(Path(self.path), device_for(self.device))
        prompt = sys.stdin.read() if self.prompt == "-" else self.prompt
        if run.config.kind == "decoder":
            self._continue(run, prompt)
        elif run.config.kind == "encoder":
            console.print(Text(_filled(run, prompt)), soft_wrap=True)
        else:
            for line in prompt.splitlines():
                console.print(Text(self._translation(run, line)), soft_wrap=True)

    def _continue(self, run: Run, prompt: str) -> None:
        """Write as it comes; only whole characters are printed."""
        ids = run.tokenizer.encode(prompt).tolist()
        written: list[int] = []
        printed = 0
        sys.stdout.write(prompt)
        options = {"temperature": self.temperature, "top": self.top, "seed": self.seed}
        for token in continued(run.module, ids, self.tokens, **options):  # type: ignore[arg-type]
            written.append(token)
            text = run.tokenizer.decode(written)
            whole = len(text) - (len(text) - len(text.rstrip("�")))
            sys.stdout.write(text[printed:whole])
            sys.stdout.flush()
            printed = max(printed, whole)
        sys.stdout.write("\n")

    def _translation(self, run: Run, line: str) -> str:
        pairs = encode_pairs([Pair(line, "")], run.source_tokenizer, run.tokenizer)
        if len(pairs.sources[0]) > run.config.context:
            raise RegardError(
                f"the source has {len(pairs.sources[0])} tokens; this model reads at most "
                f"{run.config.context}"
            )
        device = run.module.embed.tokens.weight.device
        source, lengths = padded(list(pairs.sources))
        found = translate(
            run.module, source.to(device), lengths.to(device), beams=self.beam, limit=self.tokens
        )
        return run.tokenizer.decode(found[0])


@torch.inference_mode()
def _filled(run: Run, text: str) -> str:
    """The text with the most probable token at each <mask>."""
    mask = SPECIALS[MASK]
    if mask not in text:
        raise RegardError(f'this run fills gaps: write {mask} where one is, e.g. "the {mask} sat"')
    ids = [BOS]
    for number, part in enumerate(text.split(mask)):
        ids += [MASK] * (number > 0) + run.tokenizer.encode(part).tolist()
    ids = [*ids, EOS]
    if len(ids) > run.config.context:
        raise RegardError(f"the text has {len(ids)} tokens; this model reads {run.config.context}")
    tokens = torch.tensor([ids], device=run.module.embed.tokens.weight.device)
    logits = run.module(tokens)[0]
    logits[:, : len(SPECIALS)] = -torch.inf
    filled = torch.where(tokens[0] == MASK, logits.argmax(-1), tokens[0])
    return run.tokenizer.decode(filled.tolist())
