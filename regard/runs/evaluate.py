"""The figures of a run on some data: the same ones each time."""

import math
from dataclasses import replace

from regard.errors import Problems, RegardError
from regard.families.registry import family_of
from regard.families.tasks.base import Evaluation
from regard.metrics.scores import Scores
from regard.models.config import Ability
from regard.models.kernels.int8 import quantise
from regard.runs.stored_run import Run


def evaluate(run: Run, asked: Evaluation, int8: bool = False) -> tuple[Scores, list[str]]:
    """The figures, and sentences about what was odd in the data."""
    _check(run, asked, int8)
    work = family_of(run.config).work(run.config)
    plain = None
    if int8:
        plain = work.loss(run, asked)
        run = replace(run, module=quantise(run.module, keep=False))
    scores, notes = work.evaluate(run, asked)
    if scores.tokens and scores.loss is not None and math.isnan(scores.loss):
        raise RegardError(f"{run.folder} produced NaN logits; its weights are damaged")
    if plain is not None:
        how = f"{scores.rules}; int8 weights: {_change(plain, scores)}"
        scores = replace(scores, rules=how, plain_perplexity=plain.perplexity)
    return scores, notes


def _check(run: Run, asked: Evaluation, int8: bool) -> None:
    """Refuse what does not suit the run, before the work."""
    problems, form, can = Problems("evaluate"), run.config.form, run.config.abilities
    given = {"tokenised": asked.tokenised, "written": asked.written, "by-length": asked.by_length}
    for name, value in given.items():
        fits = form == "pairs" or (name == "written" and form == "images")
        if value and not fits:
            problems.add(f"--{name} is for runs on pairs; {run.folder} is on {form}")
    if int8 and Ability.CONVERT not in can:
        problems.add("--int8 is for Transformers; this model is not one")
    if Ability.CLASSIFY in can and (asked.beam.beams != 1 or asked.by_length):
        problems.add("--beam and --by-length are for translations; a label is one word")
    problems.report()


def _change(before: Scores, after: Scores) -> str:
    """What became of the perplexity."""
    first, then = before.perplexity, after.perplexity
    assert first is not None
    assert then is not None
    return f"perplexity {first:,.4f} -> {then:,.4f} ({then / first - 1:+.3%})"
