"""What to train, as it is asked for on a command line or from Python."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard.errors import Problems, RegardError
from regard.families.base import Family, GivenOptions
from regard.families.data.images import SCENES
from regard.families.registry import family_of
from regard.families.settings import ModelSettings, Settings
from regard.models.registry import find
from regard.runs import recipes
from regard.runs.data_names import lasting
from regard.runs.plan import USUAL
from regard.runs.resuming import begun

Names = tuple[str, ...]


@dataclass(frozen=True)
class TrainingRequest:
    """A run that somebody wants; what is not said is left to the recipe, or open."""

    data: Names = ()  # text, or a built-in name
    pairs: Names = ()  # a source and a target file, or one file of both
    images: str = ""  # a folder of images, or its list
    valid: Names = ()  # held-out files
    out: str = ""
    recipe: str = ""
    model: str = ""
    order: int | None = None  # of n-grams
    steps: int | None = None
    epochs: float | None = None
    tokenizer: str = "auto"
    seed: int | None = None
    tensorboard: bool = False
    changes: Names = ()  # any setting: TABLE.KEY=VALUE

    @property
    def named(self) -> list[str]:
        """The settings that are changed by name."""
        return [change.partition("=")[0].strip() for change in self.changes]

    def settings(self) -> Settings:
        """The recipe's settings with what is asked for."""
        if sum(map(bool, (self.pairs, self.images, self.data))) > 1:
            raise RegardError("give --pairs, --images or text to train on, not both")
        settings = self._base()
        if self.model or "model.preset" in self.named:
            # Another model than the recipe's: its changes are not meant.
            preset = self.model or settings.model.preset
            settings = replace(settings, model=ModelSettings(preset))
        elif (self.images or self.data == (SCENES,)) and not settings.model.preset:
            # Named at once, so that its settings are known.
            settings = replace(settings, model=ModelSettings(USUAL["images"][0]))
        settings = recipes.override(settings, list(self.changes))
        self._check(settings.model.preset)
        return settings.changed(self._said(), "command line")

    def _base(self) -> Settings:
        """What is changed: a recipe, the run that is to be resumed, or what is usual."""
        if self.recipe:
            return recipes.load(self.recipe)
        run = begun(Path(self.out)) if self.out and not self._given else None
        return run.given if run else Settings()

    @property
    def _given(self) -> Names:
        """The data to train on, whatever it is."""
        return self.pairs or ((self.images,) if self.images else self.data)

    def _check(self, preset: str) -> None:
        """Refuse options that mean nothing to such a model."""
        named = find(preset)
        problems = Problems("train")
        steps, epochs = self.steps is not None, self.epochs is not None
        problems.require(not (steps and epochs), "give --steps or --epochs, not both")
        if self.epochs is not None and not isinstance(self.epochs, int | float):
            raise RegardError(f"epochs must be a number, not {self.epochs!r}")
        problems.require(self.epochs is None or self.epochs > 0, "--epochs must be more than 0")
        given = GivenOptions(steps, epochs, bool(self.valid), self.order is not None)
        family = Family() if named is None else family_of(named)
        family.check_options(given, named, problems)
        problems.report()

    def _said(self) -> dict[str, dict[str, Any]]:
        """What the options change, by table; nothing for those that were not given."""
        said: dict[str, dict[str, Any]] = {name: {} for name in ("data", "model", "tokenizer")}
        training = {"steps": self.steps, "epochs": self.epochs, "seed": self.seed}
        said["training"] = {key: value for key, value in training.items() if value is not None}
        if self._given:  # and what a recipe holds out is not of this data
            said["data"] |= {"train": lasting(self._given), "valid": lasting(self.valid)}
        elif self.valid:
            said["data"]["valid"] = lasting(self.valid)
        if self.pairs or self.images:  # else a recipe may say what the files are
            said["data"] |= {"pairs": bool(self.pairs), "images": bool(self.images)}
        if self.model:
            said["model"]["preset"] = self.model
        if self.order is not None:
            said["model"]["order"] = self.order
        if self.tokenizer != "auto":
            said["tokenizer"]["kind"] = self.tokenizer
        if self.tensorboard:
            said["training"]["tensorboard"] = True
        return said
