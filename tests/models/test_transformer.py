"""What holds of every Transformer: blocks, order, causality, padding, masks, heads, dropout."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import NAMES, WRITERS, assert_same, draw, ids, memory_of, settings_of, tiny
from torch import Tensor, nn

from regard.errors import RegardError
from regard.models.construction import build
from regard.models.masks import (
    Causal,
    Dense,
    Documents,
    Mask,
    Padding,
    QueryKeyRange,
    Window,
    resolve_mask,
)
from regard.models.protocol import SequenceModel
from regard.models.transformer.attention import Attention
from regard.models.transformer.blocks import ACTIVATIONS, Block, FeedForward
from regard.models.transformer.config import TransformerConfig
from regard.models.transformer.model import Transformer

CPU = torch.device("cpu")
few = settings(max_examples=8)


# --- blocks against torch's own --------------------------------------------------------------


def block_of(cross: bool, **changes: object) -> Block:
    config = TransformerConfig(width=12, heads=3, hidden=20, context=8, **changes).resolved()
    block = Block(config, cross).double()
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.5)
    return block


def give(theirs: nn.Module, ours: nn.Module) -> None:
    theirs.load_state_dict(ours.state_dict())


def give_attention(theirs: nn.MultiheadAttention, *projections: nn.Linear) -> None:
    """The input projections in torch's order (queries, keys, values), then the output's."""
    *inputs, output = projections
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in inputs]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in inputs]))
    give(theirs.out_proj, output)


@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("cross", [False, True])
def test_a_block_equals_torchs_layer(place: str, cross: bool):
    block = block_of(cross, norm_place=place, activation="relu")
    kind = nn.TransformerDecoderLayer if cross else nn.TransformerEncoderLayer
    twin = kind(12, 3, 20, dropout=0.0, batch_first=True, norm_first=place == "pre").double()
    give_attention(twin.self_attn, block.attention.query_key_value, block.attention.output)
    give(twin.norm1, block.attention_norm)
    give(twin.linear1, block.feedforward.expand)
    give(twin.linear2, block.feedforward.contract)
    give(twin.norm3 if cross else twin.norm2, block.feedforward_norm)
    x, source = torch.randn(2, 2, 5, 12, dtype=torch.float64)
    over = resolve_mask(Causal(), QueryKeyRange.of(2, 5, 5, CPU))
    hidden = torch.ones(5, 5).triu(1).bool()
    if cross:
        parts = (block.cross.query, block.cross.key_value, block.cross.output)
        give_attention(twin.multihead_attn, *parts)
        give(twin.norm2, block.cross_norm)
        ours = block(x, over, source=block.cross.read(source))
        assert_same(ours, twin(x, source, tgt_mask=hidden))
    else:
        assert_same(block(x, over), twin(x, src_mask=hidden))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("relu", lambda x: x.clamp(min=0)),
        ("gelu", lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2),
        ("gelu-tanh", lambda x: nn.GELU("tanh")(x)),
        ("silu", lambda x: x / (1 + torch.exp(-x))),
        ("relu-squared", lambda x: x.clamp(min=0) ** 2),
    ],
)
def test_the_feed_forward_layer_is_its_formula(name: str, function: Callable, gated: bool):
    config = TransformerConfig(width=6, heads=2, hidden=10, activation=name, gated=gated)
    layer = FeedForward(config).double()
    x = torch.randn(4, 6, dtype=torch.float64)
    inner = x @ layer.expand.weight.T + layer.expand.bias
    inner = function(inner[:, :10]) * inner[:, 10:] if gated else function(inner)
    assert_same(layer(x), inner @ layer.contract.weight.T + layer.contract.bias)
    assert name in ACTIVATIONS


# --- heads and embeddings --------------------------------------------------------------------


@pytest.mark.parametrize("case", ["gpt2-tiny", "t5-tiny", "regard-2"])
def test_a_tied_head_is_the_embedding(case: str):
    model = build(replace(settings_of(case), scale_head=False))
    assert not any("head" in name for name, _ in model.named_parameters())
    hidden = torch.randn(1, 2, 32)
    torch.testing.assert_close(model.logits(hidden), hidden @ model.embed.tokens.weight.T)
    with torch.no_grad():
        model.embed.tokens.weight[7] = 0
    assert not model.logits(hidden)[..., 7].any()
    # Token 7 is never read, so that what reaches its vector comes through the output alone.
    model.logits(hidden)[..., 7].sum().backward()
    torch.testing.assert_close(model.embed.tokens.weight.grad[7], hidden.sum((0, 1)))


def test_an_untied_head_is_a_matrix_of_its_own():
    model = build(settings_of("llama-tiny"))
    hidden = torch.randn(1, 2, 32)
    torch.testing.assert_close(model.logits(hidden), hidden @ model.head.project.weight.T)
    assert model.head.project.weight.data_ptr() != model.embed.tokens.weight.data_ptr()


def test_a_masked_token_head_transforms_normalises_and_adds_a_bias():
    model = tiny("bert-tiny")
    hidden = torch.randn(1, 2, 32, dtype=torch.float64)
    x = nn.functional.gelu(hidden @ model.head.transform.weight.T + model.head.transform.bias)
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-12).sqrt()
    x = x * model.head.norm.weight + model.head.norm.bias
    assert_same(model.logits(hidden), x @ model.embed.tokens.weight.T + model.head.bias)


def test_the_pooler_is_tanh_of_a_projection_of_the_first_vector():
    model = tiny("bert-tiny")
    hidden = model.hidden(ids(2, 4))
    expected = torch.tanh(hidden[:, 0] @ model.pooler.weight.T + model.pooler.bias)
    assert_same(model.pooled(hidden), expected)


@torch.no_grad()
def test_embeddings_are_scaled_and_segments_added():
    scaled = tiny("marian-tiny").embed
    assert_same(scaled(ids(2, 3)), scaled.tokens.weight[ids(2, 3)] * 32**0.5)
    bert, segments = tiny("bert-tiny").embed, torch.tensor([[0, 1, 1], [1, 0, 0]])
    expected = bert.tokens.weight[ids(2, 3)] + bert.segments.weight[segments]
    assert_same(bert(ids(2, 3), segments), expected)
    assert_same(bert(ids(2, 3)), bert(ids(2, 3), torch.zeros_like(segments)))


@torch.no_grad()
def test_a_scaled_head_divides_by_the_root_of_the_width():
    model, hidden = tiny("t5-tiny"), torch.randn(1, 2, 32, dtype=torch.float64)
    assert_same(model.logits(hidden), hidden @ model.embed.tokens.weight.T / 32**0.5)


@torch.no_grad()
def test_blocks_read_embeddings_plus_positions_normalised_together():
    model, seen = tiny("bert-tiny"), []
    hook = model.encoder.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(ids(2, 4))
    hook.remove()
    x = model.embed(ids(2, 4)) + model.encoder.positions.table.weight[:4]
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-12).sqrt()
    assert_same(
        seen[0], x * model.encoder.embedding_norm.weight + model.encoder.embedding_norm.bias
    )


def louder_queries(model: Transformer, factor: float) -> Transformer:
    """A copy whose queries are all `factor` times as long."""
    model = deepcopy(model)
    for module in model.modules():
        if isinstance(module, Attention):
            module.query_rows().data.mul_(factor)
    return model


@torch.no_grad()
def test_unscaled_scores_are_scaled_ones_of_longer_queries():
    unscaled, scaled = tiny("t5-tiny"), tiny("t5-tiny", scale_scores=True)
    scaled = louder_queries(scaled, unscaled.config.head_width**0.5)
    tokens = ids(2, 4)
    assert_same(unscaled(tokens, memory_of(unscaled, 2)), scaled(tokens, memory_of(scaled, 2)))


@pytest.mark.parametrize("normalised", [True, False])
@torch.no_grad()
def test_only_normalised_queries_may_be_of_any_length(normalised: bool):
    model = tiny("t5-tiny", query_key_norm=normalised, norm_epsilon=1e-15)
    louder, tokens = louder_queries(model, 3.0), ids(2, 4)
    one, other = model(tokens, memory_of(model, 2)), louder(tokens, memory_of(louder, 2))
    assert torch.allclose(one, other, rtol=0, atol=1e-9) == normalised


def test_relative_distances_have_a_side_in_an_encoder_only():
    model, ahead = tiny("t5-tiny"), torch.arange(1, 50)
    encoder, decoder = model.encoder.positions, model.decoder.positions
    assert len(encoder.bucket(ahead).unique()) == len(encoder.bucket(-ahead).unique()) > 1
    assert (encoder.bucket(ahead) != encoder.bucket(-ahead)).all()
    assert not decoder.bucket(ahead).any()  # never seen, all in one bucket


@torch.no_grad()
def test_a_source_vocabulary_of_its_own_is_used_for_sources_only():
    model = tiny("marian-tiny", source_vocabulary=300)
    memory = model.encode(ids(1, 4) + 44)  # ids the target does not know
    assert model(ids(1, 3), memory).shape == (1, 3, 256)
    with pytest.raises(RegardError, match="token id 299 is out of range"):
        model(torch.tensor([[299]]), memory)


@pytest.mark.parametrize("case", NAMES)
def test_every_model_answers_the_protocol(case: str):
    assert isinstance(tiny(case), SequenceModel)


# --- order -----------------------------------------------------------------------------------


def read(model: Transformer, tokens: Tensor) -> Tensor:
    """The encoder's vectors, whichever assembly it sits in."""
    return model.hidden(tokens) if model.config.kind == "encoder" else model.encode(tokens).values


@pytest.mark.parametrize("case", ["bert-tiny", "t5-tiny", "marian-tiny", "regard-2-encoder"])
@few
@given(order=st.permutations(range(6)))
@torch.no_grad()
def test_without_positions_and_mask_order_passes_through(case: str, order: list[int]):
    model, tokens = tiny(f"{case} none"), ids(2, 6)
    assert_same(read(model, tokens[:, order]), read(model, tokens)[:, order])


@pytest.mark.parametrize("case", [name for name in WRITERS if name.startswith("t5")])
@torch.no_grad()
def test_with_positions_order_matters(case: str):
    model, order = tiny(case), [1, 0, 2, 3, 4, 5]
    same = torch.allclose(read(model, ids(2, 6)[:, order]), read(model, ids(2, 6))[:, order])
    assert same == (model.config.positions == "none")


# --- causality -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", WRITERS)
def test_no_output_feels_a_later_input(case: str, dtype: torch.dtype):
    model, count = tiny(case, dtype), 5
    embedded: list[Tensor] = []
    memory = memory_of(model, 1)
    hook = model.embed.register_forward_hook(lambda *call: embedded.append(call[-1]))
    logits = model(ids(1, count), memory)
    hook.remove()
    for t in range(count):
        # A random direction: no cancellation can make a gradient zero by accident.
        output = logits[0, t] @ torch.randn(logits.shape[-1], dtype=dtype)
        (gradient,) = torch.autograd.grad(output, embedded[-1], retain_graph=True)
        assert not gradient[0, t + 1 :].any()
        assert gradient[0, : t + 1].any(-1).all()


@pytest.mark.parametrize("case", ["bert-tiny", "t5-tiny"])
def test_an_encoder_feels_every_input(case: str):
    model = tiny(case)
    embedded: list[Tensor] = []
    hook = model.embed.register_forward_hook(lambda *call: embedded.append(call[-1]))
    output = read(model, ids(1, 5))[0, 0] @ torch.randn(32, dtype=torch.float64)
    hook.remove()
    (gradient,) = torch.autograd.grad(output, embedded[0])
    assert gradient[0].any(-1).all()


# --- padding ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [*WRITERS, "bert-tiny", "bert-tiny alibi", "bert-tiny relative"])
@few
@given(
    lengths=st.lists(st.integers(1, 6), min_size=3, max_size=3),
    sources=st.lists(st.integers(1, 6), min_size=3, max_size=3),
    garbage=st.integers(1, 99),
)
@torch.no_grad()
def test_padding_never_changes_what_is_real(case: str, lengths, sources, garbage: int):
    model, tokens, source = tiny(case), ids(3, 6), ids(3, 6, seed=50)
    texts = [tokens[row : row + 1, :length] for row, length in enumerate(lengths)]
    dirty, dirty_source = ids(3, 6, seed=garbage), ids(3, 6, seed=100 + garbage)
    for row in range(3):
        dirty[row, : lengths[row]] = tokens[row, : lengths[row]]
        dirty_source[row, : sources[row]] = source[row, : sources[row]]
    reads = model.config.kind == "encoder-decoder"
    memory = model.encode(dirty_source, sources) if reads else None
    batch = model(dirty, memory, lengths=torch.tensor(lengths))
    for row, text in enumerate(texts):
        own = model.encode(source[row : row + 1, : sources[row]]) if reads else None
        assert_same(batch[row : row + 1, : lengths[row]], model(text, own))


@torch.no_grad()
def test_an_empty_source_and_an_empty_text_give_finite_numbers():
    model = tiny("t5-tiny")
    memory = model.encode(ids(2, 3), [0, 3])
    assert model(ids(2, 3), memory, lengths=[3, 0]).isfinite().all()
    assert tiny("bert-tiny")(ids(2, 3), lengths=[0, 3]).isfinite().all()


@torch.no_grad()
def test_both_names_of_a_sources_lengths_mean_the_same():
    model = tiny("t5-tiny")
    named = model.encode(ids(2, 3), source_lengths=[1, 3])
    assert_same(model(ids(2, 2), named), model(ids(2, 2), model.encode(ids(2, 3), [1, 3])))


# --- masks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["none", "rotary", "alibi", "relative"])
@pytest.mark.parametrize("name", ["gpt2-tiny", "bert-tiny", "marian-tiny"])
@few
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3), swap=st.booleans())
@torch.no_grad()
def test_packed_documents_equal_separate_rows(name: str, scheme: str, sizes: list, swap: bool):
    model, tokens = tiny(f"{name} {scheme}"), ids(2, sum(sizes))
    numbers = [number for number, size in enumerate(sizes) for _ in range(size)]
    mask: Mask = Documents(torch.tensor([numbers, numbers]))
    mask = Window(9) & mask if swap else mask
    whole = model(tokens, memory_of(model, 2), mask=mask)
    # Rotary angles are in single precision, so that a distance is only known to 2⁻²⁴ or so.
    tolerance = 1e-5 if scheme == "rotary" else 1e-10
    for document, packed in zip(tokens.split(sizes, 1), whole.split(sizes, 1), strict=True):
        assert_same(packed, model(document, memory_of(model, 2)), tolerance)


@pytest.mark.parametrize("case", ["gpt2-tiny", "llama-tiny", "bert-tiny"])
def test_a_window_reaches_as_far_as_its_layers_together(case: str):
    model, size, count = tiny(case), 3, 9
    embedded: list[Tensor] = []
    hook = model.embed.register_forward_hook(lambda *call: embedded.append(call[-1]))
    logits = model(ids(1, count), mask=Window(size))
    hook.remove()
    (gradient,) = torch.autograd.grad(logits[0, 6].square().sum(), embedded[0])
    reach = model.config.layers * (size - 1)  # 4 back, and for an encoder also ahead
    last = 6 if model.config.kind == "decoder" else min(count - 1, 6 + reach)
    assert gradient[0].any(-1).tolist() == [6 - reach <= i <= last for i in range(count)]


@pytest.mark.parametrize("case", ["gpt2-tiny", "t5-tiny", "bert-tiny"])
@torch.no_grad()
def test_a_mask_equals_its_table(case: str):
    model, tokens = tiny(case), ids(2, 6)
    mask = Documents(torch.tensor([[0, 0, 1, 1, 1, 1], [0, 1, 1, 0, 0, 0]])) & Window(2)
    table = Dense(mask.allowed(QueryKeyRange.of(2, 6, 6, CPU)))
    memory = memory_of(model, 2)
    assert_same(model(tokens, memory, mask=mask), model(tokens, memory, mask=table))
    assert not torch.allclose(model(tokens, memory, mask=mask), model(tokens, memory))


@torch.no_grad()
def test_the_decoder_respects_what_the_source_mask_says_of_keys():
    model, source = tiny("t5-tiny none"), ids(2, 5)
    kept = torch.tensor([True, False, True, True, False])
    memory = model.encode(source, mask=Dense(kept[None]))
    # Without positions, hiding a source token is the same as leaving it out.
    assert_same(model(ids(2, 3), memory), model(ids(2, 3), model.encode(source[:, kept])))


# --- dropout and number formats --------------------------------------------------------------


@pytest.mark.parametrize("which", ["dropout", "attention_dropout", "activation_dropout"])
@pytest.mark.parametrize("case", NAMES)
@torch.no_grad()
def test_each_dropout_is_active_in_training_and_off_in_evaluation(case: str, which: str):
    none = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    model = build(replace(settings_of(case), **none | {which: 0.5}))
    draw(model)
    plain = tiny(case, torch.float32, **none)

    def logits(model: Transformer) -> Tensor:
        return model(ids(2, 4), memory_of(model, 2))

    assert not torch.equal(logits(model), logits(model))
    model.eval()
    assert torch.equal(logits(model), logits(model))
    torch.testing.assert_close(logits(model), logits(plain))


@torch.no_grad()
def test_an_encoder_in_bfloat16_agrees_with_float64():
    whole, exact = tiny("bert-tiny", torch.bfloat16)(ids(2, 8)), tiny("bert-tiny")(ids(2, 8))
    assert whole.dtype == torch.bfloat16
    assert (whole - exact).norm() / exact.norm() < 0.03  # some twenty roundings of 2⁻⁹


@pytest.mark.parametrize("case", [*WRITERS, "bert-tiny"])
@torch.no_grad()
def test_float32_agrees_with_float64(case: str):
    single, double = tiny(case, torch.float32), tiny(case)
    exact = double(ids(2, 8), memory_of(double, 2))
    assert_same(single(ids(2, 8), memory_of(single, 2)).double(), exact, 1e-3)


@torch.no_grad()
def test_full_padding_and_no_padding_are_the_same_to_the_last_bit():
    model = tiny("bert-tiny", torch.float32)
    assert torch.equal(model(ids(2, 6), lengths=[6, 6]), model(ids(2, 6)))
    full = Padding(torch.tensor([6, 6]))
    assert torch.equal(model(ids(2, 6), mask=full), model(ids(2, 6)))
