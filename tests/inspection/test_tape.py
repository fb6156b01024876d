"""The tape: it records what attention really did, changes nothing, and costs nothing when off."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

from dataclasses import dataclass, replace

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard import RegardError, TransformerConfig, build, record
from regard.inspection.tape import Tape
from regard.models.attention import Attend, Attention
from regard.models.masks import Window
from regard.models.presets import PRESETS, preset
from regard.models.protocol import Memory
from regard.models.transformer import Transformer

TINY = [*(name for name in PRESETS if name.endswith("-tiny")), "regard-2"]
WRITERS = [name for name in TINY if name != "bert-tiny"]

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()


def tiny(name: str, **changes: object) -> Transformer:
    """A preset with few tokens and no dropout, and weights wide enough for attention to choose."""
    config: TransformerConfig = replace(preset(name), vocabulary=64, **changes)
    if name.startswith("regard"):
        config = replace(config, width=32, heads=4, hidden=64)
    return draw(build(config))


@torch.no_grad()
def draw(model: nn.Module) -> nn.Module:
    """Rows of norm 1, scales around 1, and no bias left at zero."""
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.normal_(1.0 if name.endswith("norm.weight") else 0.0, 0.2)
        else:
            parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
    return model.eval()


@dataclass(frozen=True)
class Text:
    """Rows of 9 tokens, of which some are padding, and for those that read one a source of 7."""

    tokens: Tensor
    source: Tensor
    lengths: tuple[int, ...] = (9, 4, 1)
    source_lengths: tuple[int, ...] = (3, 7, 1)

    def memory(self, model: Transformer) -> Memory | None:
        if model.config.kind != "encoder-decoder":
            return None
        return model.encode(self.source, self.source_lengths)

    def read_by(self, model: Transformer) -> Tensor:
        return model(self.tokens, self.memory(model), lengths=self.lengths)

    @property
    def real(self) -> Tensor:
        return torch.arange(9) < torch.tensor(self.lengths)[:, None]  # (rows, 9)

    @property
    def source_real(self) -> Tensor:
        return torch.arange(7) < torch.tensor(self.source_lengths)[:, None]  # (rows, 7)


@pytest.fixture
def text() -> Text:
    torch.manual_seed(2)
    return Text(torch.randint(3, 64, (3, 9)), torch.randint(3, 64, (3, 7)))


def recorded(model: Transformer, text: Text) -> Tape:
    with torch.no_grad(), record(model) as tape:
        text.read_by(model)
    return tape


def hooks(model: nn.Module) -> list[object]:
    return [hook for module in model.modules() for hook in module._forward_hooks.values()]


# It changes nothing


@pytest.mark.parametrize("name", TINY)
def test_the_output_is_the_same_to_the_bit(name, text):
    model = tiny(name)
    without = text.read_by(model)
    with record(model):
        under = text.read_by(model)
    assert torch.equal(under, without)
    assert torch.equal(text.read_by(model), without)


@pytest.mark.parametrize("name", ["gpt2-tiny", "t5-tiny"])
def test_training_goes_on_to_the_bit_while_recorded(name, text):
    """The same dropout is drawn and the same gradients come, and the tape keeps no graph."""
    model = tiny(name).train()
    assert model.config.attention_dropout > 0

    def gradients() -> list[Tensor]:
        torch.manual_seed(3)
        model.zero_grad()
        text.read_by(model).square().mean().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    without = gradients()
    with record(model) as tape:
        under = gradients()
    assert all(torch.equal(a, b) for a, b in zip(under, without, strict=True))
    kept = [vars(look).values() for name in tape.names for look in tape.calls(name)]
    assert not any(t.requires_grad for look in kept for t in look if t is not None)


# It tells the truth


def gpt2() -> nn.Module:
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4)
    )


def bert() -> nn.Module:
    config = hf.BertConfig(
        vocab_size=64,
        max_position_embeddings=32,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
    )
    return hf.BertForMaskedLM(config)


def llama() -> nn.Module:
    config = hf.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
    )
    return hf.LlamaForCausalLM(config)


def t5() -> nn.Module:
    config = hf.T5Config(
        vocab_size=64,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=1,
        num_decoder_layers=2,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=12,
    )
    return hf.T5ForConditionalGeneration(config)


def marian() -> nn.Module:
    config = hf.MarianConfig(
        vocab_size=64,
        d_model=32,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        pad_token_id=1,
        decoder_start_token_id=1,
    )
    return hf.MarianMTModel(config)


def their_attentions(theirs: nn.Module, text: Text) -> dict[str, Tensor]:
    """What `transformers` says each layer's heads looked at, by the names of our places."""
    inputs = {"input_ids": text.tokens, "attention_mask": text.real.long()}
    if theirs.config.is_encoder_decoder:
        inputs = {f"decoder_{key}": value for key, value in inputs.items()}
        inputs |= {"input_ids": text.source, "attention_mask": text.source_real.long()}
    with torch.no_grad():
        said = theirs(**inputs, output_attentions=True)
    kind = "encoder" if theirs.config.model_type == "bert" else "decoder"
    places = {
        "attentions": (kind, "attention"),
        "encoder_attentions": ("encoder", "attention"),
        "decoder_attentions": ("decoder", "attention"),
        "cross_attentions": ("decoder", "cross"),
    }
    return {
        f"{stack}.blocks.{i}.{part}": layer
        for key, (stack, part) in places.items()
        for i, layer in enumerate(said.get(key) or ())
    }


@pytest.mark.parametrize("make", [gpt2, bert, llama, t5, marian])
def test_probabilities_are_those_of_transformers_in_every_layer_and_head(make, text, tmp_path):
    theirs = make()
    torch.manual_seed(1)
    for name, parameter in theirs.named_parameters():
        if "embed_positions" not in name:  # Marian's sines are no weights
            nn.init.normal_(parameter, float(parameter.dim() == 1), 0.2)
    theirs.eval().save_pretrained(tmp_path)
    theirs.set_attn_implementation("eager")
    tape = recorded(regard.load(tmp_path).module, text)
    expected = their_attentions(theirs, text)
    if not expected and make is t5 and hf.__version__.startswith("5.17."):
        pytest.skip("transformers 5.17 gives no attention weights of T5")
    assert expected.keys() == set(tape.names)
    for name, theirs_say in expected.items():
        real = text.source_real if name.startswith("encoder") and make is not bert else text.real
        ours, theirs_say = (t.transpose(1, 2)[real] for t in (tape[name].probabilities, theirs_say))
        assert ours.shape == theirs_say.shape  # (real queries, heads, keys)
        torch.testing.assert_close(ours, theirs_say, atol=2e-6, rtol=2e-5)
        assert (ours.max(-1).values - ours.mean(-1)).mean() > 0.1  # they do prefer some keys


@pytest.mark.parametrize("name", TINY)
def test_probabilities_times_values_is_what_the_kernel_returned(name, text):
    model, returned = tiny(name), {}
    for place, module in model.named_modules():
        if isinstance(module, Attend):
            key = place.removesuffix(".attend")
            module.register_forward_hook(lambda _m, _i, out, key=key: returned.update({key: out}))
    tape = recorded(model, text)
    assert set(tape.names) == returned.keys()
    for place, output in returned.items():
        look = tape[place]
        groups = look.queries.shape[1] // look.values.shape[1]
        values = look.values.repeat_interleave(groups, dim=1)
        torch.testing.assert_close(look.probabilities @ values, output, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("name", TINY)
def test_probabilities_follow_from_the_scores_bias_and_mask_beside_them(name, text):
    model = tiny(name)
    tape = recorded(model, text)
    config = model.config
    for place in tape.names:
        look = tape[place]
        groups = config.heads // config.kv_heads
        assert look.keys.shape[1] == config.kv_heads
        raw = torch.einsum(
            "rhqw,rhkw->rhqk", look.queries, look.keys.repeat_interleave(groups, dim=1)
        )
        scale = config.head_width**-0.5 if config.scale_scores else 1.0
        torch.testing.assert_close(look.scores, raw * scale, atol=1e-5, rtol=1e-5)
        relative = config.positions == "relative" and place.endswith("attention")
        assert (look.bias is not None) == relative
        biased = look.scores if look.bias is None else look.scores + look.bias
        expected = biased.masked_fill(~look.allowed, -torch.inf).softmax(-1)
        torch.testing.assert_close(look.probabilities, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", TINY)
def test_rows_sum_to_one_over_what_is_allowed_and_are_zero_elsewhere(name, text):
    tape = recorded(tiny(name), text)
    triangle = torch.ones(9, 9).tril().bool()
    for place in tape.names:
        look = tape[place]
        if place.endswith("cross"):
            allowed = text.source_real[:, None].expand(-1, 9, -1)
        elif place.startswith("decoder"):
            allowed = triangle.expand(3, -1, -1)
        else:
            real = text.real if name == "bert-tiny" else text.source_real
            allowed = real[:, None].expand(-1, real.shape[1], -1)
        allowed = allowed[:, None].expand_as(look.probabilities)  # (rows, heads, queries, keys)
        assert torch.equal(look.allowed, allowed)
        assert (look.probabilities[~allowed] == 0).all()
        assert (look.probabilities[allowed] > 0).all()
        sums = look.probabilities.sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums))


def test_a_source_of_no_tokens_is_looked_at_by_nobody(text):
    model = tiny("marian-tiny")
    tape = recorded(model, replace(text, source_lengths=(0, 7, 1)))
    probabilities = tape["decoder.blocks.1.cross"].probabilities
    assert (probabilities[0] == 0).all()
    torch.testing.assert_close(probabilities[1:].sum(-1), torch.ones(2, 4, 9))


def test_a_mask_of_ones_own_is_recorded(text):
    model = tiny("llama-tiny")
    with torch.no_grad(), record(model) as tape:
        model(text.tokens, mask=Window(3))
    seen = tape["decoder.blocks.1.attention"].probabilities > 0
    band = torch.ones(9, 9).tril() - torch.ones(9, 9).tril(-3)
    assert torch.equal(seen, band.bool().expand_as(seen))


# Places and calls


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("gpt2-tiny", ["decoder.blocks.0.attention", "decoder.blocks.1.attention"]),
        ("bert-tiny", ["encoder.blocks.0.attention", "encoder.blocks.1.attention"]),
        (
            "t5-tiny",
            [
                "encoder.blocks.0.attention",
                "encoder.blocks.1.attention",
                "decoder.blocks.0.attention",
                "decoder.blocks.0.cross",
                "decoder.blocks.1.attention",
                "decoder.blocks.1.cross",
            ],
        ),
    ],
)
def test_names_are_places_in_the_order_of_the_model(name, places, text):
    assert recorded(tiny(name), text).names == places


def test_attention_without_a_model_around_it_is_recorded_too():
    x = torch.randn(2, 5, 16)
    bare, heads = Attend(), Attention(16, 2)
    with record(bare) as tape:
        bare(x, x, x)
    (place,) = tape.names
    assert tape[place].probabilities.shape == (2, 5, 5)
    with record(heads) as tape:
        heads(x)
    (place,) = tape.names
    assert tape[place].probabilities.shape == (2, 2, 5, 5)


def test_two_tapes_run_at_once_each_with_the_names_of_its_own_part(text):
    model = tiny("marian-tiny")
    with torch.no_grad(), record(model) as whole, record(model.decoder) as part:
        text.read_by(model)
    assert part.names == [
        name.removeprefix("decoder.") for name in whole.names if name.startswith("decoder.")
    ]
    one, other = whole["decoder.blocks.0.cross"], part["blocks.0.cross"]
    assert torch.equal(one.probabilities, other.probabilities)
    assert not hooks(model)


def test_a_name_never_recorded_is_answered_with_the_nearest(text):
    model = tiny("t5-tiny")
    tape = recorded(model, text)
    for ask in (tape.calls, tape.probabilities, lambda name: tape[name]):
        with pytest.raises(RegardError, match=r"did you mean 'decoder\.blocks\.1\.cross'"):
            ask("decoder.block.1.cros")
    memory = text.memory(model)
    with record(model) as tape:
        model(text.tokens, memory)
    assert all(name.startswith("decoder.") for name in tape.names)
    with pytest.raises(RegardError, match=r"'encoder\.blocks\.0\.attention' was recorded"):
        tape["encoder.blocks.0.attention"]


def test_a_tape_on_which_nothing_ran_says_so(text):
    with record(tiny("gpt2-tiny")) as tape:
        pass
    assert tape.names == []
    with pytest.raises(RegardError) as caught:
        tape["decoder.blocks.0.attention"]
    assert not str(caught.value).rstrip().endswith("known:")  # a list of nothing helps nobody


@pytest.mark.parametrize("model", [nn.Linear(2, 2), nn.Sequential()])
def test_a_model_without_attention_is_refused(model):
    with pytest.raises(RegardError, match="no attention"), record(model):
        pass


@pytest.mark.parametrize("name", WRITERS)
@torch.no_grad()
def test_steps_joined_are_the_probabilities_of_one_full_pass(name, text):
    model = tiny(name)
    memory = text.memory(model)
    with record(model) as full:
        model(text.tokens, memory)
    state = model.start(3, 16)
    parts = [text.tokens[:, :4], *text.tokens[:, 4:].split(1, dim=1)]  # 4 tokens, then 5 steps
    with record(model) as steps:
        for part in parts:
            model(part, memory, state)
    assert steps.names == full.names
    for place in full.names:
        assert len(steps.calls(place)) == 6
        assert steps[place] is steps.calls(place)[-1]
        torch.testing.assert_close(
            steps.probabilities(place), full[place].probabilities, atol=2e-6, rtol=1e-5
        )
        assert torch.equal(full.probabilities(place), full[place].probabilities)


@torch.no_grad()
def test_what_was_recorded_does_not_change_with_the_cache(text):
    model = tiny("llama-tiny")
    state = model.start(3, 16)
    with record(model) as tape:
        model(text.tokens[:, :4], state=state)
    look = tape["decoder.blocks.0.attention"]
    before = [t.clone() for t in (look.queries, look.keys, look.values)]
    for layer in state.layers:
        for held in layer:
            held.fill_(7.0)
    after = (look.queries, look.keys, look.values)
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


# It costs nothing when off


class Operations(TorchDispatchMode):
    """The names of all operations that ran, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket._qualified_op_name)
        return func(*args, **(kwargs or {}))


def operations(model: Transformer, text: Text) -> list[str]:
    with torch.no_grad(), Operations() as seen:
        text.read_by(model)
    return seen.names


@pytest.mark.parametrize("name", TINY)
def test_without_a_tape_the_kernel_runs_alone_before_and_after_one(name, text):
    model = tiny(name)
    before = operations(model, text)
    with record(model):
        under = operations(model, text)
    after = operations(model, text)
    assert after == before
    kernels = sum(isinstance(module, Attend) for module in model.modules())
    assert before.count("aten::_scaled_dot_product_flash_attention_for_cpu") == kernels
    assert not [operation for operation in before if "softmax" in operation]
    assert sum("softmax" in operation for operation in under) == kernels  # it can tell


@pytest.mark.parametrize("where", ["in the model", "in the block"])
def test_no_hook_is_left_even_if_the_block_raises(where, text):
    model = tiny("t5-tiny")
    before = operations(model, text)

    def interrupted() -> None:
        with record(model):
            assert len(hooks(model)) == 6
            text.read_by(model)
            if where == "in the model":
                model(text.tokens + 1000, text.memory(model))
            raise ZeroDivisionError

    with pytest.raises((RegardError, ZeroDivisionError)):
        interrupted()
    assert not hooks(model)
    assert operations(model, text) == before


# Compiled models


class Counting:
    """A compiler that runs the graph as it is and counts the runs."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, graph, example_inputs):
        def run(*args):
            self.runs += 1
            return graph.forward(*args)

        return run


@pytest.mark.parametrize("how", ["torch.compile", "in place"])
@torch.no_grad()
def test_a_compiled_model_is_recorded_uncompiled_and_compiled_again_after(how, text):
    torch.compiler.reset()
    model = tiny("gpt2-tiny")
    expected = recorded(model, text)
    backend = Counting()
    compiled = torch.compile(model, backend=backend)
    if how == "in place":
        model.compile(backend=backend)
        compiled = model
    output = compiled(text.tokens)
    runs = backend.runs
    assert runs > 0
    with record(compiled) as tape:
        under = compiled(text.tokens)
    assert backend.runs == runs
    assert torch.equal(under, output)
    assert tape.names == expected.names
    for name in tape.names:
        assert torch.equal(tape[name].probabilities, expected[name].probabilities)
    assert torch.equal(compiled(text.tokens), output)
    assert backend.runs == 2 * runs


@torch.no_grad()
def test_compiled_blocks_keep_their_places(text):
    torch.compiler.reset()
    model = tiny("gpt2-tiny")
    expected = recorded(model, text)
    for i, block in enumerate(model.decoder.blocks):
        model.decoder.blocks[i] = torch.compile(block, backend="eager")
    text.read_by(model)
    tape = recorded(model, text)
    assert tape.names == expected.names
    for name in tape.names:
        assert torch.equal(tape[name].probabilities, expected[name].probabilities)


def test_tape_works_on_a_batch_of_one_position():
    """Where a query has one key, all of its attention goes there."""
    model = tiny("gpt2-tiny")
    with record(model) as tape:
        model(torch.tensor([[5]]))
    for name in tape.names:
        assert torch.equal(tape[name].probabilities, torch.ones(1, 4, 1, 1))


def test_bfloat16_rows_sum_to_one_as_nearly_as_the_type_allows(text):
    model = tiny("llama-tiny").to(torch.bfloat16)
    for name in (tape := recorded(model, text)).names:
        look = tape[name]
        sums = look.probabilities.float().sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums), atol=2**-7, rtol=0)
        one = F.softmax(look.scores.float().masked_fill(~look.allowed, -torch.inf), -1)
        torch.testing.assert_close(look.probabilities.float(), one, atol=2**-8, rtol=2**-6)
