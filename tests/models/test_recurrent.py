"""Truncated backpropagation through time in recurrent models."""

import torch
from tiny_models import assert_same, ids
from tiny_recurrent import fresh, weighted


def test_what_is_carried_over_counts_although_no_gradient_does():
    """The gradient of a second call is that of a pass which is given its numbers to begin with."""
    model, tokens = fresh("lstm"), ids(2, 5)
    state = model.start(2, 5)
    model(tokens[:, :3], None, state)
    kept = state.remembered
    carried = weighted(model(tokens[:, 3:], None, state))
    apart = model.decoder(model.embed(tokens[:, 3:]), kept.held)[0]
    wanted = weighted(model.logits(apart))
    assert_same(carried, wanted)
    ours = torch.autograd.grad(carried, list(model.parameters()))
    theirs = torch.autograd.grad(wanted, list(model.parameters()))
    for one, other in zip(ours, theirs, strict=True):
        assert_same(one, other)
