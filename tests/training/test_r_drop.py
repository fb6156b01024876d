"""R-Drop: rows that are read twice, and must agree."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_jobs import KINDS, batch_of, form_of, gradients_of, job_of, model_of, trained
from torch.nn import functional as F

from regard.costs import jobs
from regard.costs.jobs import Shape
from regard.data.feeds.masking import IGNORE
from regard.errors import RegardError
from regard.families.settings import Settings
from regard.models.registry import named
from regard.runs.plan import plan
from regard.training import r_drop
from regard.training.job import Answer
from regard.training.objectives import Criterion, objective_for
from regard.training.r_drop import RDrop, r_drop_loss


def by_torch(logits: torch.Tensor, targets: torch.Tensor, smoothing: float, weight: float):
    """The paper's loss, halved, by torch's own parts."""
    asked = targets != IGNORE
    first, second = logits.log_softmax(-1).chunk(2)
    between = [
        F.kl_div(b, a, log_target=True, reduction="none").sum(-1)[asked].sum()
        for a, b in ((first, second), (second, first))
    ]
    wrong = F.cross_entropy(
        logits.flatten(0, 1),
        targets.repeat(2, 1).flatten(),
        ignore_index=IGNORE,
        reduction="sum",
        label_smoothing=smoothing,
    )
    return (wrong + weight * sum(between) / 2) / 2


def drawn(seed: int, rows: int = 3, positions: int = 4, words: int = 7):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(2 * rows, positions, words, generator=generator)
    targets = torch.randint(words, (rows, positions), generator=generator)
    targets[torch.rand(rows, positions, generator=generator) < 0.3] = IGNORE
    return logits.requires_grad_(), targets


@given(st.integers(0, 1000), st.floats(0, 0.9), st.floats(0, 20), st.integers(1, 200))
def test_value_and_gradient_are_those_of_the_definition(seed, smoothing, weight, numbers):
    logits, targets = drawn(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(r_drop, "NUMBERS", numbers)  # any number of pieces
        found = r_drop_loss(logits, targets, smoothing, weight)
    wanted = by_torch(logits, targets, smoothing, weight)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    slopes = [torch.autograd.grad(3.0 * value, logits)[0] for value in (found, wanted)]
    torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-4)


def test_the_gradient_is_the_slope():
    logits, targets = drawn(5)
    flat = logits.detach().flatten(0, 1).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: RDrop.apply(x, targets.flatten(), 0.1, 1.25), flat)


@pytest.mark.parametrize("kind", KINDS)
def test_without_dropout_both_readings_agree_and_it_is_the_plain_loss(kind):
    module, batch = model_of(kind), batch_of(kind)
    objective, found = objective_for(module.config, form_of(kind)), []
    for criterion in (Criterion(0.1), Criterion(0.1, 5.0)):
        module.zero_grad(set_to_none=True)
        value = Answer(module, objective, criterion)(batch)
        value.backward()
        found.append((value.detach(), gradients_of(module)))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


def test_learning_to_agree_brings_readings_closer(tmp_path):
    """Of two models that see the same, the one that is asked to agree with itself does."""
    apart = []
    for number, weight in enumerate((1e-6, 20.0)):
        module = model_of("pairs", dropout=0.3)
        job = job_of(
            tmp_path / str(number), "pairs", module=module, r_drop=weight, steps=40, rows=6
        )
        trained(job)
        module.train()
        batch = batch_of("pairs")
        torch.manual_seed(0)
        plain, agreeing = (
            Answer(module, job.objective, Criterion(0.0, share))(batch).item()
            for share in (1e-9, 4.0)
        )
        apart.append((agreeing - plain) / batch.valid)
    assert 0 < 2 * apart[1] < apart[0]


def test_twice_the_rows_are_counted():
    config = named("transformer-tiny")
    once, twice, more = (
        jobs.train_step(config, Shape(rows, 5, 6), criterion=criterion).total.products
        for rows, criterion in (
            (4, Criterion()),
            (2, Criterion(r_drop=5.0)),
            (2, Criterion()),
        )
    )
    assert twice == once
    assert more < twice


def settings(model: str, **changes: object) -> Settings:
    tables = {
        "data": {"train": ["reverse"]} if model == "transformer-tiny" else {"train": ["python"]},
        "model": {"preset": model, **changes},
        "training": {"consistency": 5.0},
    }
    return Settings().changed(tables, "test")


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        ("lstm", {}, "go on from one another"),
        ("transformer-tiny", {"dropout": 0.0}, "set model.dropout, or leave out"),
        ("regard-4", {}, "set model.dropout, or leave out"),
        ("ngram", {}, "both readings of a row are the same, leave out training.r_drop"),
    ],
)
def test_it_is_refused_where_it_is_of_no_use(model, changes, said):
    with pytest.raises(RegardError, match=said):
        plan(settings(model, **changes))


def test_only_recurrent_texts_are_calmed():
    wanted = Settings().changed(
        {"data": {"train": ["python"]}, "training": {"slowness": 1.0}}, "test"
    )
    with pytest.raises(RegardError, match=r"leave out training\.ar_alpha"):
        plan(wanted)
