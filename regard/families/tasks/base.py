"""What a model learns to do, whatever it is made of: its data, and how well it does it.

A family trains models of one task or several; each task says how data is read for it, what is shown
of a model meanwhile, how a model is judged, and which command uses it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from regard.data.progress import Progress
from regard.decoding.settings import Beam
from regard.families.plan import Plan, PreparedData
from regard.families.settings import Settings
from regard.metrics.scores import Scores
from regard.models.config import ModelConfig
from regard.models.network import BaseModel, SequenceModule
from regard.text.tokenizer import Tokenizer
from regard.training.optimization.precision import Precision
from regard.training.validation import GREEDY

Sample = Callable[[], Mapping[str, Any]]
JUDGED_BY = {"tokens": 1000, "pairs": 50, "images": 50}  # fewer held out tell little


@dataclass(frozen=True)
class Evaluation:
    """What a run is to be judged by."""

    given: tuple[str, ...] = ()  # data; none: what the run held out
    beam: Beam = GREEDY
    by_length: bool = False  # pairs: figures by the length of sources too
    tokenised: bool = False  # pairs: BLEU counts what stands between blanks
    written: Path | None = None  # a file for what is generated
    precision: Precision = "float32"
    batch_size: int = 32


class Trained(Protocol):
    """A run that was trained, as far as its evaluation needs it."""

    @property
    def folder(self) -> Path: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def config(self) -> ModelConfig: ...
    @property
    def writer(self) -> SequenceModule: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def source_tokenizer(self) -> Tokenizer: ...
    def check_data(self, digest: str) -> None: ...


class Work:
    """One task: what all of them have in common by default."""

    def read(
        self, settings: Settings, progress: Progress, known: Sequence[Tokenizer]
    ) -> PreparedData:
        """The data that settings name, read and divided, with a tokenizer (or the `known` ones)."""
        raise NotImplementedError

    def sampler(self, plan: Plan, module: BaseModel) -> Sample:
        """What to show of a model now and then."""
        raise NotImplementedError

    def judge_freely(self, plan: Plan, module: BaseModel) -> Callable[[], Scores] | None:
        """How a model is judged by what it generates, where a loss tells little."""
        return None

    def finished(self, plan: Plan, module: Callable[[], BaseModel], scores: Scores) -> Scores:
        """The figures of a finished run: the loss is known, what it generates is not."""
        return scores

    def evaluate(self, run: Trained, asked: Evaluation) -> tuple[Scores, list[str]]:
        """A run's figures over some data, and what was odd about that."""
        raise NotImplementedError

    def loss(self, run: Trained, asked: Evaluation) -> Scores:
        """The same without anything generated."""
        return self.evaluate(run, asked)[0]

    def use(self, plan: Plan, folder: str) -> str:
        """A command that uses the run; `folder` is quoted."""
        raise NotImplementedError

    def failures(self, plan: Plan) -> str:
        """What could not be read while training, in a sentence."""
        return ""


def little(count: int, what: str) -> list[str]:
    """A sentence where what is held out is too little to judge by."""
    if not 0 < count < JUDGED_BY[what]:
        return []
    return [f"only {count:,} {what} are held out: the figures over them say little"]


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """One line for each text, whatever is in it."""
    whole = "".join(" ".join(line.split("\n")) + "\n" for line in lines)
    path.write_text(whole, encoding="utf-8", errors="replace")
