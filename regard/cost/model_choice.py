"""Which model to train on some text in some time: by counts, rates and a stated scaling rule.

For a given amount of arithmetic a model is trained best on about 20 tokens for each parameter
(Hoffmann et al. 2022), and text that is read up to four times is nearly as good as new text
(Muennighoff et al. 2023). So the largest `regard-N` is taken whose 20 tokens for each parameter can
be read in the time, and are there in four passes over the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from regard.cost import jobs
from regard.cost.device.ceilings import Device
from regard.cost.jobs import Shape
from regard.cost.predict import step_seconds
from regard.errors import RegardError
from regard.models.transformer.config import TransformerConfig
from regard.models.transformer.presets import preset
from regard.text.learning import vocabulary_for
from regard.training.optimization.precision import Precision

TOKENS_PER_PARAMETER = 20
PASSES = 4
CHARACTERS = 4  # of a token, roughly, of English under byte pairs
DEPTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
STEP = {"cuda": 65536, "cpu": 4096}  # tokens of a step
CONTEXT = {"cuda": 1024, "cpu": 256}
STEPS = 200  # of little text: in fewer a model hardly learns, so they read less each


@dataclass(frozen=True)
class Choice:
    """One size of model, and how it would be trained."""

    name: str
    parameters: int
    wanted: int  # tokens that the rule asks for
    possible: int  # tokens that can be read in the time
    seconds: float  # of a step
    rows: int  # computed at once
    memory: int


@dataclass(frozen=True)
class Plan:
    """What is proposed, and why."""

    choice: Choice
    tokens: int  # to be read in all
    steps: int
    tokens_per_step: int
    context: int
    vocabulary: int
    hours: float  # predicted
    passes: float  # over the text
    reasons: tuple[str, ...]
    tried: tuple[Choice, ...]


def plan(characters: int, budget: float, device: Device, precision: Precision) -> Plan:
    """A model for so many characters of text and so many seconds on a device."""
    if characters < 1 or not budget > 0:
        raise RegardError("a plan needs some text and some time")
    there = max(1, characters // CHARACTERS)
    enough = PASSES * there
    vocabulary = vocabulary_for("bpe", characters)
    context = min(CONTEXT[device.kind], max(16, enough // STEPS))
    step = context * max(1, min(STEP[device.kind], enough // STEPS) // context)
    tried: list[Choice] = []
    for depth in DEPTHS:
        config = replace(preset(f"regard-{depth}"), vocabulary=vocabulary, context=context)
        choice = _choice(f"regard-{depth}", config, step, budget, device, precision)
        if choice is None:
            break
        tried.append(choice)
        if choice.wanted > min(choice.possible, enough):
            break
    if not tried:
        raise RegardError(f"{device.name} has no room for the smallest model")
    fine = [one for one in tried if one.wanted <= min(one.possible, enough)]
    chosen = fine[-1] if fine else tried[0]
    # What time is left is used, as long as the text is not read too often.
    steps = min(chosen.possible, enough) // step
    if not steps:
        lack = "text" if chosen.possible else "time"
        raise RegardError(
            f"there is not enough {lack} for one step of {step:,} tokens, which takes "
            f"{chosen.seconds:.3g} s with {chosen.name}"
        )
    return Plan(
        chosen,
        steps * step,
        steps,
        step,
        context,
        vocabulary,
        steps * chosen.seconds / 3600,
        steps * step / there,
        tuple(_reasons(chosen, tried, there, bool(fine), len(tried) == len(DEPTHS))),
        tuple(tried),
    )


def _choice(
    name: str,
    config: TransformerConfig,
    step: int,
    budget: float,
    device: Device,
    precision: Precision,
) -> Choice | None:
    """A size of model with as many rows at once as fit; nothing if not one does."""
    rows, parts = step // config.context, 1
    while True:
        counted = jobs.train_step(config, Shape(rows, config.context), device.kind, precision)
        if counted.peak + device.fixed <= device.memory:
            break
        if rows == 1:
            return None
        rows, parts = rows // 2, parts * 2
    seconds = step_seconds(counted, device, parts)
    return Choice(
        name,
        counted.parameters,
        TOKENS_PER_PARAMETER * counted.parameters,
        int(budget / seconds) * step,
        seconds,
        rows,
        counted.peak + device.fixed,
    )


def _reasons(
    chosen: Choice, tried: Sequence[Choice], there: int, fine: bool, all_tried: bool
) -> list[str]:
    rule = f"{TOKENS_PER_PARAMETER} tokens for each parameter (Hoffmann et al. 2022)"
    said = [
        f"{chosen.name} has {chosen.parameters:,} parameters, so {rule} are "
        f"{chosen.wanted:,}; in the time {chosen.possible:,} can be read",
        f"the text has about {there:,} tokens, and reading it up to {PASSES} times is nearly as "
        "good as new text (Muennighoff et al. 2023)",
    ]
    larger = [one for one in tried if one.parameters > chosen.parameters]
    if not fine:
        lack = "time" if chosen.possible < PASSES * there else "text"
        said.append(f"even the smallest model would want more than there is {lack} for")
    elif larger:
        over = larger[0]
        lack = "time" if over.possible < over.wanted else "text"
        said.append(f"{over.name} would want {over.wanted:,} tokens: more than there is {lack} for")
    elif not all_tried:
        said.append("a larger one has no room on this device")
    if PASSES * there < chosen.possible:
        said.append("text and not time decides: what time is left would read the same again")
    return said
