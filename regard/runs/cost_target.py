"""Which model `regard cost` is asked about: a name, a recipe, a run, or a Hugging Face folder."""

import difflib
from dataclasses import dataclass, replace
from pathlib import Path

from regard.errors import RegardError
from regard.families.settings import Settings
from regard.interchange.huggingface.folder import config_of_folder
from regard.models.config import ModelConfig
from regard.models.registry import find, named, names
from regard.runs import recipes
from regard.runs.run_folder import is_folder, is_run
from regard.runs.stored_run import config_of
from regard.training.objectives import Criterion, criterion_of
from regard.training.settings import OptimizerSettings, TrainingSettings

TOKENS = 128  # where neither the model nor anybody says how many
OFFERED = 6  # names, of some sixty
RATE = 1e-3  # where the model decides it; what it is changes no cost


@dataclass(frozen=True)
class PricedJob:
    """A model, and how it is trained where that is known."""

    config: ModelConfig
    settings: Settings | None = None
    decided: bool = True  # by data; else it is a recipe, which leaves much to it

    @property
    def training(self) -> TrainingSettings:
        return self.settings.training if self.settings else TrainingSettings()

    @property
    def open_vocabulary(self) -> bool:
        """Whether nobody has said yet how many tokens there are."""
        return not self.decided and not (self.settings and self.settings.tokenizer.vocabulary)

    @property
    def steps(self) -> int:
        """Those of a run; a recipe may count in passes over data instead."""
        known = self.settings and (self.decided or not self.training.epochs)
        return self.training.steps if known else 1

    @property
    def optimizer(self) -> OptimizerSettings | None:
        chosen = self.settings.optimizer if self.settings else None
        return replace(chosen, learning_rate=chosen.learning_rate or RATE) if chosen else None

    @property
    def criterion(self) -> Criterion:
        return criterion_of(self.training)

    def tokens(self, new: int) -> int:
        """Of a row, with room for new ones behind it."""
        usual = min(TOKENS, self.config.context)
        if self.settings and self._is_text and not self.config.unlimited:
            usual = self.config.context
        wanted = self.training.context or usual
        return min(wanted, max(1, self.config.context - new))

    def rows(self, tokens: int) -> tuple[int, int]:
        """Rows of a step that are computed at once, and how often; of pairs as if all were long."""
        counts = self.settings is not None and self.settings.data.form != "images"
        step = self.training.tokens_per_step // tokens if counts else 0
        rows = self.training.micro_batch_size or max(1, step)
        return (min(rows, step), -(-step // rows)) if step else (rows, 1)

    @property
    def _is_text(self) -> bool:
        return self.settings is not None and self.settings.data.form == "text"


def job_of(name: str) -> PricedJob:
    """What a name or a path stands for.

    A recipe's vocabulary is its data's; without data it is what its tokenizer may learn.
    """
    if find(name) is not None:
        return PricedJob(named(name))
    if name and is_folder(Path(name)):
        folder = Path(name)
        if is_run(folder):
            return PricedJob(config_of(folder), recipes.load(name))
        return PricedJob(config_of_folder(folder))
    if name in recipes.names() or name.endswith(".toml"):
        settings = recipes.load(name)
        if not settings.model.preset:
            raise RegardError(f"{name} leaves the model open; name one")
        size = settings.tokenizer.vocabulary
        config = settings.model.config(**({"vocabulary": size} if size else {}))
        return PricedJob(config, settings, decided=False)
    raise RegardError(_unknown(name))


def _unknown(name: str) -> str:
    """That there is no such model, with names that may be meant."""
    if "/" in name or "\\" in name:
        return f"{name} is not there; give a run, a Hugging Face folder, a recipe or a model's name"
    known = sorted({*names(), *recipes.names()})
    begin = name.lower().partition("-")[0]
    close = difflib.get_close_matches(name.lower(), known, n=OFFERED)
    close += [one for one in known if begin and one.startswith(begin) and one not in close]
    offered = (
        f"did you mean {', '.join(close[:OFFERED])}?" if close else "`regard models` lists all"
    )
    return f"no model, recipe or folder is called {name!r}; {offered}"
