"""What a model is asked: sums over targets, so that parts add up to the whole."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_jobs import KINDS, VOCABULARY, batch_of, config_of, form_of, gradients_of, model_of
from torch.nn import functional as F

from regard.data.batch import Batch
from regard.data.feeds.masking import IGNORE
from regard.errors import RegardError
from regard.models.construction import build
from regard.models.recurrent.config import RecurrentConfig
from regard.training.job import Answer
from regard.training.loop import recompute
from regard.training.objectives import Criterion, activation_penalty, loss, objective_for


def backward(module, kind: str, parts: list[Batch], valid: int, smoothing: float = 0.0):
    module.zero_grad(set_to_none=True)
    objective = objective_for(module.config, form_of(kind))
    for part in parts:
        (loss(objective.logits(module, part), part.targets, smoothing) / valid).backward()
    return gradients_of(module)


def assert_alike(one: dict, other: dict, tolerance: float = 1e-5) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=tolerance, msg=name)


@pytest.mark.parametrize("kind", KINDS)
@given(st.integers(1, 7), st.integers(0, 1000))
@settings(max_examples=8)
def test_parts_have_the_gradient_of_the_whole(kind, rows, seed):
    module, batch = model_of(kind), batch_of(kind, rows=7, seed=seed)
    whole = backward(module, kind, [batch], batch.valid)
    assert max(gradient.abs().max() for gradient in whole.values()) > 1e-3
    parts = batch.parts(rows)
    assert sum(part.valid for part in parts) == batch.valid
    assert_alike(backward(module, kind, parts, batch.valid), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_that_of_torchs_mean_over_the_valid_targets(kind):
    module, batch = model_of(kind), batch_of(kind)
    found = backward(module, kind, batch.parts(2), batch.valid, smoothing=0.1)
    module.zero_grad(set_to_none=True)
    answer = objective_for(module.config, form_of(kind)).logits(module, batch)
    mean = F.cross_entropy(answer.transpose(1, 2), batch.targets, label_smoothing=0.1)
    mean.backward()
    assert_alike(found, gradients_of(module))


def test_the_mean_of_means_is_something_else():
    """Why sums are used: rows of different lengths would count differently."""
    module, batch = model_of("pairs"), batch_of("pairs", seed=3)
    parts = batch.parts(2)
    assert len({part.valid for part in parts}) > 1
    objective = objective_for(module.config, "pairs")
    sums = [loss(objective.logits(module, part), part.targets) for part in parts]
    mean = sum(sums) / batch.valid
    of_means = sum(s / p.valid for s, p in zip(sums, parts, strict=True)) / len(parts)
    assert abs(mean.item() - of_means.item()) > 1e-4


@given(st.floats(0, 0.99), st.integers(0, 100))
def test_the_loss_is_the_smoothed_cross_entropy_written_out(smoothing, seed):
    generator = torch.Generator().manual_seed(seed)
    answer = torch.randn(3, 4, 7, generator=generator, dtype=torch.float64)
    targets = torch.randint(7, (3, 4), generator=generator)
    targets[torch.rand(3, 4, generator=generator) < 0.3] = IGNORE
    total = 0.0
    for row in range(3):
        for place in range(4):
            if targets[row, place] == IGNORE:
                continue
            logs = answer[row, place].log_softmax(-1)
            wanted = torch.full((7,), smoothing / 7, dtype=torch.float64)
            wanted[targets[row, place]] += 1 - smoothing
            total -= float((wanted * logs).sum())
    assert float(loss(answer, targets, smoothing)) == pytest.approx(total, rel=1e-4, abs=1e-4)


def test_nothing_asked_costs_nothing():
    answer = torch.randn(2, 3, 5, requires_grad=True)
    value = loss(answer, torch.full((2, 3), IGNORE), 0.1)
    value.backward()
    assert value.item() == 0
    assert torch.equal(answer.grad, torch.zeros_like(answer))


@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_documents_in_one_row_are_as_if_alone(kind):
    module = model_of(kind, positions="rotary").eval()  # distances alone matter
    objective = objective_for(module.config, "text")
    tokens = torch.randint(5, VOCABULARY, (2, 10))
    documents = torch.tensor([[0] * 4 + [1] * 6, [3] * 7 + [4] * 3])
    row = Batch(tokens, tokens, 20, 20)
    packed = objective.logits(module, replace(row, documents=documents))
    assert not torch.allclose(packed, objective.logits(module, row), atol=1e-4)
    for index, cut in ((0, 4), (1, 7)):
        for piece in (slice(0, cut), slice(cut, 10)):
            one = tokens[index : index + 1, piece]
            alone = objective.logits(module, Batch(one, one, 0, 0))
            torch.testing.assert_close(packed[index : index + 1, piece], alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["masked", "pairs"])
def test_padding_changes_no_answer(kind):
    module = model_of(kind).eval()
    objective = objective_for(module.config, form_of(kind))
    batch = batch_of(kind)
    together = objective.logits(module, batch)
    for row, part in enumerate(batch.parts(1)):
        alone = objective.logits(module, part)
        torch.testing.assert_close(
            together[row : row + 1, : alone.shape[1]], alone, rtol=0, atol=1e-5
        )


@pytest.mark.parametrize("kind", KINDS)
def test_computing_activations_again_gives_the_same_gradients_dropout_and_all(kind):
    module, batch = model_of(kind, dropout=0.3, attention_dropout=0.2), batch_of(kind)
    module.train()
    found = []
    for _ in range(2):
        torch.manual_seed(5)
        found.append(backward(module, kind, [batch], batch.valid))
        recompute(module)
    assert_alike(*found, tolerance=1e-6)
    torch.manual_seed(6)
    other = backward(module, kind, [batch], batch.valid)
    assert any(not torch.allclose(other[name], found[0][name]) for name in other)


def test_a_model_is_asked_what_its_kind_can_answer():
    names = {kind: objective_for(config_of(kind), form_of(kind)).name for kind in KINDS}
    assert names == {"causal": "causal", "masked": "masked", "pairs": "sequence-to-sequence"}


@pytest.mark.parametrize(
    ("kind", "form", "said"),
    [
        ("causal", "pairs", "continues texts learns from text, not from pairs"),
        ("masked", "pairs", "fills gaps learns from text, not from pairs"),
        (
            "pairs",
            "text",
            "translates learns from pairs, not from text; .* or give pairs with --pairs",
        ),
        (
            "causal",
            "images",
            "continues texts learns from text, not from images with captions",
        ),
    ],
)
def test_data_of_the_wrong_kind_is_one_sentence(kind, form, said):
    with pytest.raises(RegardError, match=said):
        objective_for(config_of(kind), form)


def test_a_model_without_a_head_cannot_be_asked():
    with pytest.raises(RegardError, match="head 'none' answers nothing"):
        objective_for(config_of("masked", head="none"), "text")


@given(st.integers(0, 100), st.floats(0, 9), st.floats(0, 9))
def test_large_and_changing_hidden_vectors_cost_what_their_squares_are(seed, size, change):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(3, 5, 4, generator=generator)
    wanted = 0.0
    for row in hidden.tolist():
        for place, vector in enumerate(row):
            wanted += size * sum(x * x for x in vector) / 4
            before = row[place - 1] if place else vector
            changes = [(x - y) ** 2 for x, y in zip(vector, before, strict=True)]
            wanted += change * sum(changes) / 4
    found = activation_penalty(hidden, Criterion(ar_alpha=size, tar_beta=change)).item()
    assert found == pytest.approx(wanted, rel=1e-4)


def test_a_calmed_model_has_smaller_and_slower_hidden_vectors():
    found = []
    for criterion in (Criterion(), Criterion(ar_alpha=5.0, tar_beta=5.0)):
        torch.manual_seed(0)
        module = build(RecurrentConfig(vocabulary=VOCABULARY, layers=1, width=16, hidden=16))
        answer = Answer(module, objective_for(module.config, "text"), criterion)
        steps = torch.optim.Adam(module.parameters(), lr=1e-2)
        batch = batch_of("causal")
        for _ in range(60):
            steps.zero_grad()
            (answer(batch) / batch.valid).backward()
            steps.step()
        hidden = module.hidden(batch.tokens)
        found.append((hidden.square().mean().item(), hidden.diff(dim=1).square().mean().item()))
    (size, change), (calm_size, calm_change) = found
    assert calm_size < size / 2
    assert calm_change < change / 2
