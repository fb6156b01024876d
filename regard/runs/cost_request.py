"""What a job costs, as it is asked for on a command line or from Python."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args, get_type_hints

from regard.costs.device.ceilings import Device, device_named
from regard.costs.in_parts import in_parts
from regard.costs.jobs import Shape
from regard.costs.report import Asked, Report, Work, report
from regard.errors import Problems, RegardError
from regard.families.registry import family_of
from regard.families.settings import Settings
from regard.formats import many
from regard.models.config import ModelConfig
from regard.models.network import BaseModel
from regard.models.registry import find
from regard.runs.cost_target import PricedJob, job_of
from regard.runs.run_folder import is_run
from regard.runs.stored_run import open_run
from regard.training.memory.micro_batch import even
from regard.training.optimization.precision import Precision


@dataclass(frozen=True)
class CostRequest:
    """A job that somebody wants priced; what is not said is that of the recipe or run."""

    model: str  # a name, a recipe, a run, or a Hugging Face folder
    batch_size: int | None = None
    tokens: int | None = None
    source: int | None = None
    train: bool = False
    generate: int | None = None
    steps: int | None = None
    device: str = "auto"
    precision: Literal["auto", "float32", "bf16", "bf16-weights"] = "auto"
    processes: int = 1
    recompute: bool = False

    def _check(self) -> None:
        problems = Problems("cost")
        generates = self.generate is not None
        problems.require(not (self.train and generates), "give --train or --generate, not both")
        for name in ("batch_size", "tokens", "source", "generate", "steps", "processes"):
            value = getattr(self, name)
            said = f"--{name.replace('_', '-')} must be at least 1, not {value}"
            problems.require(value is None or value >= 1, said)
        known = get_args(get_type_hints(CostRequest)["precision"])
        problems.require(self.precision in known, f"--precision is one of {', '.join(known)}")
        for name, given in {"steps": self.steps is not None, "recompute": self.recompute}.items():
            said = f"--{name} is for training; give --train too, or leave it out"
            problems.require(self.train or not given, said)
        problems.report()

    def priced(self) -> tuple[Report, int, PricedJob]:
        """What is asked for, counted and predicted; in how many parts a step is computed; and the
        model that was meant."""
        self._check()
        job = job_of(self.model)
        device = device_named(self.device)
        learns = self.train or family_of(job.config).only_learns
        work: Work = "train" if learns else "generate" if self.generate else "read"
        config, new = job.config, self.generate or 0
        family = family_of(config)
        family.check_priced(vars(self))
        tokens = self.tokens or family.tokens_priced(job.training) or job.tokens(new)
        self._check_fit(config, tokens, new)
        alone = not self.train or self.batch_size or family.only_learns
        rows, parts = (self.batch_size or 1, 1) if alone else job.rows(tokens)
        if self.processes > rows:
            raise RegardError(
                f"{self.processes} processes cannot share {many(rows, 'row')}; raise --batch-size"
            )
        asked = Asked(
            work,
            Shape(rows, tokens, self.source or 0),
            device,
            self._precision(device, job.settings),
            new,
            (self.steps or job.steps) if learns else 1,
            self.processes,
            self.recompute or (self.train and job.training.recompute),
            job.optimizer,
            job.criterion,
        )
        found = family.priced(config, asked, self._opened)
        left_open = self.train and not self.batch_size and not job.training.micro_batch_size
        left_open = left_open and not family.only_learns
        if left_open and not found.fits and found.rows_that_fit:  # training would choose so too
            some = even(found.rows_that_fit, rows)
            parts = -(-rows // some)
            found = report(config, replace(asked, shape=replace(asked.shape, rows=some)))
        return in_parts(found, parts), parts, job

    def _check_fit(self, config: ModelConfig, tokens: int, new: int) -> None:
        """Refuse what a model like this does not do, or not at such a length."""
        problems = Problems("cost")
        if self.source is not None and not config.reads_text:
            problems.add(f"{self.model} reads no source text; leave out --source")
        if config.task == "masked" and new:
            problems.add("an encoder generates nothing; leave out --generate")
        longest = max(tokens + new, self.source or 0)
        if not config.unlimited and longest > config.context:
            problems.add(
                f"{self.model} has a context of {many(config.context, 'token')}, which "
                f"{longest:,} do not fit into; lower --tokens, --source or --generate"
            )
        problems.report()

    def _precision(self, device: Device, settings: Settings | None) -> Precision:
        if self.precision != "auto":
            return self.precision
        if settings is not None and settings.training.precision != "auto":
            return settings.training.precision
        return "bf16" if device.kind == "cuda" else "float32"

    def _opened(self) -> BaseModel:
        """The run that was asked about."""
        if find(self.model) is not None or not is_run(Path(self.model)):
            raise RegardError(job_of(self.model).config.uncounted)
        return open_run(Path(self.model), "cpu").module
