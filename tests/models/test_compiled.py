"""What a training loop will do to a model: compile it whole, copy it, send it elsewhere."""

import copy
import pickle

import pytest
import torch
from tiny_models import ids, tiny

import regard
from regard.models.masks import Causal, Documents, Padding, Window

PRESETS = ("gpt2-tiny", "bert-tiny", "llama-tiny", "t5-tiny", "marian-tiny", "regard-2")


def forward(module, tokens, lengths=None, mask=None):
    """Logits; an encoder–decoder reads the same tokens as its source."""
    if module.config.kind == "encoder-decoder":
        memory = module.encode(tokens, lengths, mask)
        return module(tokens, memory, lengths=lengths)
    return module(tokens, lengths=lengths, mask=mask)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"lengths": torch.tensor([9, 4])},
        {"mask": Padding(torch.tensor([9, 4]))},
        {"mask": Window(3)},
        {"mask": Documents(torch.tensor([[0] * 5 + [1] * 4] * 2))},
    ],
    ids=["plain", "lengths", "padding", "window", "documents"],
)
def test_a_model_compiles_in_one_piece_and_agrees(name, more):
    torch.compiler.reset()
    module, tokens = tiny(name), ids(2, 9)
    # The eager backend runs the captured graph as it is: only the capture is judged.
    compiled = torch.compile(lambda t: forward(module, t, **more), fullgraph=True, backend="eager")
    with torch.no_grad():
        found, expected = compiled(tokens), forward(module, tokens, **more)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1, :4], expected[1, :4])


@pytest.mark.parametrize("name", PRESETS)
def test_a_copy_and_a_reloaded_state_dict_give_the_same_logits(name):
    module, tokens = tiny(name), ids(2, 9)
    other = regard.build(module.config).to(next(module.parameters()).dtype).eval()
    other.load_state_dict(module.state_dict())
    with torch.no_grad():
        expected = forward(module, tokens)
        assert torch.equal(forward(copy.deepcopy(module), tokens), expected)
        assert torch.equal(forward(other, tokens), expected)


@pytest.mark.parametrize("name", PRESETS)
def test_a_model_can_be_handed_to_another_process(name):
    # Written only: what was pickled is read back by the process that asked for it, never by us.
    assert pickle.dumps(tiny(name))


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny", "t5-tiny"])
def test_a_model_on_the_meta_device_runs_reorders_and_gives_shapes(name):
    with torch.device("meta"):
        module = regard.build(regard.preset(name)).eval()
        tokens = torch.zeros(2, 5, dtype=torch.long)
        memory = module.encode(tokens) if module.config.kind == "encoder-decoder" else None
        state = module.start(2, 9)
        assert module(tokens, memory, state, lengths=[5, 3]).shape == (2, 5, 256)
        state.reorder([1, 0, 1])
        assert state.lengths == [3, 5, 3]
        assert module(tokens[:1, :1].expand(3, 1), None, state).shape == (3, 1, 256)


def test_reordering_within_the_same_rows_moves_nothing_of_the_source():
    module = tiny("t5-tiny")
    state = module.start(2, 9)
    with torch.no_grad():
        module(ids(2, 3), module.encode(ids(2, 4)), state)
        state.reorder([0, 0, 1, 1])
        reading = state.reading
        state.reorder([1, 0, 3, 2])  # each row still reads its own source
        assert state.reading is reading
        state.reorder([2, 0, 3, 2])
        assert state.reading is not reading


def test_reordering_the_same_number_of_rows_allocates_nothing_and_the_identity_does_nothing():
    module = tiny("gpt2-tiny")
    state = module.start(3, 9)
    with torch.no_grad():
        module(ids(3, 4), state=state)
    places = [tensor.data_ptr() for layer in state.layers for tensor in layer]
    version = state.layers[0].keys._version
    state.reorder([0, 1, 2])
    assert state.layers[0].keys._version == version
    state.reorder([2, 0, 0])
    assert [tensor.data_ptr() for layer in state.layers for tensor in layer] == places


def test_a_state_keeps_numbers_and_no_gradients():
    module = tiny("gpt2-tiny")
    state = module.start(2, 9)
    module(ids(2, 4), state=state)
    assert not state.layers[0].keys.requires_grad
    module(ids(2, 1), state=state).sum().backward()  # and a second step can be backpropagated


def test_masks_take_plain_lists():
    x = torch.randn(2, 3, 4)
    attend = regard.models.transformer.attention.Attend()
    assert torch.equal(
        attend(x, x, x, Padding([3, 1])), attend(x, x, x, Padding(torch.tensor([3, 1])))
    )
    packed = [[0, 0, 1], [0, 1, 1]]
    assert torch.equal(
        attend(x, x, x, Causal() & Documents(packed)),
        attend(x, x, x, Causal() & Documents(torch.tensor(packed))),
    )
