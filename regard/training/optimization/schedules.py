"""The learning rate over a run, as a factor of its peak: a function of the step, and of how often
validation has shown nothing new."""

import math

from regard.training.settings import ScheduleSettings

LONGEST_WARMUP = 500  # steps, when not said otherwise


def warmup(settings: ScheduleSettings, steps: int) -> int:
    """How many steps the learning rate rises."""
    return min(steps // 20, LONGEST_WARMUP) if settings.warmup < 0 else settings.warmup


def factor(settings: ScheduleSettings, step: int, steps: int, cuts: int = 0) -> float:
    """The share of the peak learning rate at `step` of 0 … steps - 1.

    All rise linearly over the warm-up. `constant` then stays at 1 and falls linearly to the floor
    over the last `decay` of the run, even if it has not risen to 1 by then; `cosine` falls to the
    floor over the rest of the run; `inverse-sqrt` falls with one over the square root of the step,
    and knows no end; `plateau` is cut behind each validation that is no new best, of which there
    were `cuts`.
    """
    rise = warmup(settings, steps)
    risen = min((step + 1) / rise, 1.0) if rise else 1.0
    if settings.kind == "inverse-sqrt":
        return risen if step < rise else math.sqrt(max(rise, 1) / (step + 1))
    if settings.kind == "plateau":
        return risen * settings.cut**cuts
    if settings.kind == "cosine":
        done = (step - rise) / max(steps - 1 - rise, 1)
        left = 0.5 * (1 + math.cos(math.pi * min(max(done, 0.0), 1.0)))
    else:
        fall = round(settings.decay_fraction * steps)
        left = min(max((steps - 1 - step) / fall, 0.0), 1.0) if fall else 1.0
    return min(risen, settings.min_lr_ratio + (1 - settings.min_lr_ratio) * left)
