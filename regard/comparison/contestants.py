"""Who is compared: short names for models, and settings that make the comparison a fair one.

All share tokens, division of the data and tokens in a step; each keeps the optimizer's rate and the
dropout that suit its family.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from regard.comparison.matching import can_be_matched, count, matched
from regard.errors import Problems, RegardError, nearest
from regard.families.settings import ModelSettings, Settings
from regard.models.config import Ability, ModelConfig
from regard.models.registry import all_presets, named, names
from regard.runs.stored_run import config_for
from regard.text.tokenizer import Tokenizer

TEXT_NAMES = {"transformer": "regard-4", "convolution": "conv"}
PAIR_NAMES = {"transformer": "transformer-tiny", "conv": "conv-pairs", "convolution": "conv-pairs"}
USUAL = {
    False: ("ngram", "elman", "lstm", "conv", "transformer"),
    True: ("rnn", "rnn+attention", "conv", "transformer"),
}
CONTEXT = 256  # tokens in a row of text; recurrent models carry on, over rows of 64
STEP, STEP_ON_GPU = 2048, 8192  # tokens


@dataclass(frozen=True)
class Contestant:
    """One model in the comparison."""

    name: str  # as it was given
    settings: Settings  # as for `regard train`, but for the seed
    matched: str = ""  # how its size was chosen, in words
    parameters: int = 0  # 0: it has none

    @property
    def counts(self) -> bool:
        """Whether it counts instead of being trained by steps."""
        return not self.settings.model.by_steps

    @property
    def in_rows_of(self) -> int:
        """Tokens in a row of text it is trained on; 0 of counts, recurrent models and pairs."""
        carried = Ability.CARRY in self.settings.model.config().abilities
        return (
            0
            if self.counts or carried or self.settings.data.pairs
            else self.settings.training.context
        )

    def seeded(self, number: int) -> Settings:
        """The settings of one of its runs: those that follow have the seeds that follow."""
        training = self.settings.training
        return replace(self.settings, training=replace(training, seed=training.seed + number))

    def trained_for(self, steps: int) -> "Contestant":
        """The same with so many steps."""
        training = replace(self.settings.training, steps=steps, epochs=0.0)
        return replace(self, settings=replace(self.settings, training=training))


def preset_of(name: str, pairs: bool) -> str:
    """The model that a short name stands for; one that fits the data, or a sentence."""
    short = PAIR_NAMES if pairs else TEXT_NAMES
    preset = short.get(name, name)
    try:
        named(preset)
    except RegardError:
        known = [*short, *(other for other in names() if _fits(other, pairs))]
        raise RegardError(f"no model is called {name!r}; {nearest(name, known)}") from None
    if not _fits(preset, pairs):
        what, usual = "pairs" if pairs else "text", ", ".join(USUAL[pairs])
        raise RegardError(f"{name} cannot be compared on {what}; choose among {usual}, or others")
    return preset


def _fits(preset: str, pairs: bool) -> bool:
    """Whether a model reads such data."""
    config = named(preset)
    return config.task == ("sequence-to-sequence" if pairs else "causal")


def chosen(given: str, pairs: bool) -> dict[str, str]:
    """The models named in a list with commas, each with its preset; all mistakes together."""
    names = [name.strip() for name in given.split(",") if name.strip()] or list(USUAL[pairs])
    problems = Problems("--models")
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.add(f"{name} is named twice")
    found = {}
    for name in dict.fromkeys(names):
        try:
            found[name] = preset_of(name, pairs)
        except RegardError as error:
            problems.add(str(error))
    problems.report()
    return found


def about(preset: str) -> str:
    """A model in a few words."""
    known = all_presets().get(preset)
    return known.about if known else named(preset).about


def shared(settings: Settings, pairs: bool, device: str) -> Settings:
    """One contestant's settings with what must be the same for all, where nobody said otherwise."""
    data, tokenizer, training = settings.data, settings.tokenizer, settings.training
    if tokenizer.kind == "auto" and not pairs:  # n-grams would have words
        tokenizer = replace(tokenizer, kind="bpe")
    data = replace(data, pairs=pairs)  # a built-in task has not said so
    if data.lines == "auto":  # nor shall n-grams have lines as texts
        data = replace(data, lines="no")
    config = settings.model.config()
    context = training.context
    if not pairs and Ability.CARRY not in config.abilities:
        context = context or CONTEXT
    training = replace(
        training,
        context=context,
        tokens_per_step=training.tokens_per_step or (STEP_ON_GPU if device == "cuda" else STEP),
        sample_every=training.sample_every or -1,
    )
    return replace(settings, data=data, tokenizer=tokenizer, training=training)


def sized(
    name: str, settings: Settings, tokenizers: Sequence[Tokenizer], budget: int
) -> Contestant:
    """A contestant whose width comes nearest to the budget; 0 leaves it as it is."""
    model = settings.model
    config = _config(settings, tokenizers)
    if not config.by_steps:
        return Contestant(name, settings, "it counts: there are no parameters to match")
    if not budget or not can_be_matched(config):
        return Contestant(name, settings, "as its name has it", count(config))
    said = sorted({"width", "hidden"} & model.changes.keys())
    if said:
        return Contestant(name, settings, f"its {' and '.join(said)} were given", count(config))
    try:
        found = matched(config, budget)
    except RegardError as error:
        raise RegardError(f"{name}: {error}") from None
    changes: Mapping[str, Any] = {**model.changes, **found.changes}
    settings = replace(settings, model=ModelSettings(model.preset, changes))
    words = f"width {found.changes['width']} comes nearest to {budget:,}"
    return Contestant(name, settings, words, found.parameters)


def _config(settings: Settings, tokenizers: Sequence[Tokenizer]) -> ModelConfig:
    """The model as it will be built."""
    config = config_for(settings.model, tokenizers[0], tokenizers[-1])
    if not config.unlimited and not settings.data.pairs:
        changed = {"context": settings.training.context}
        return replace(config, **changed)  # a learned table is so long
    return config
