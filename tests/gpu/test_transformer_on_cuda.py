"""What can only be seen on a GPU: its kernels agree with the CPU's, and compile in one piece."""

from dataclasses import replace

import pytest
import torch

import regard
from regard.models.masks import Causal, Dense, Documents, Padding, Window
from regard.models.transformer.attention import Attend
from regard.models.transformer.config import Scheme

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")

TINY = ("gpt2-tiny", "bert-tiny", "llama-tiny", "t5-tiny", "marian-tiny")
SCHEMES: tuple[Scheme, ...] = ("none", "sinusoidal", "learned", "rotary", "alibi", "relative")
CUDA = torch.device("cuda", 0)


def forward(module, tokens, **more):
    """Logits; encoder–decoders read the same tokens as their source."""
    if module.config.kind == "encoder-decoder":
        more["memory"] = module.encode(tokens, more.get("lengths"))
    return module(tokens, **more)


def gap(a, b):
    return ((a.float().cpu() - b.float().cpu()).abs().max() / b.float().std().cpu()).item()


@pytest.fixture(autouse=True)
def _exact_products():
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize("name", TINY)
def test_the_gpu_agrees_with_the_cpu(name):
    module = regard.build(regard.preset(name)).eval()
    tokens = torch.randint(0, 256, (4, 33))
    lengths = torch.tensor([33, 7, 1, 20])
    expected = forward(module, tokens, lengths=lengths)
    found = forward(module.to(CUDA), tokens.to(CUDA), lengths=lengths.to(CUDA))
    for row, length in enumerate(lengths.tolist()):
        assert gap(found[row, :length], expected[row, :length]) < 2e-5


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_agree_with_the_full_pass(scheme, dtype):
    config = replace(regard.preset("llama-tiny"), positions=scheme)
    module = regard.build(config).eval().to(CUDA, dtype)
    tokens = torch.randint(0, 256, (3, 24), device=CUDA)
    state = module.start(3, 24)
    parts = [module(tokens[:, a:b], state=state) for a, b in ((0, 9), (9, 10), (10, 24))]
    assert gap(torch.cat(parts, 1), module(tokens)) < (2e-5 if dtype == torch.float32 else 0.08)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [32, 64, 128])
def test_a_query_that_may_see_nothing_gets_zeros_and_finite_gradients(dtype, width):
    shape = (2, 4, 64, width)
    queries, keys, values = (
        torch.randn(shape, device=CUDA, dtype=dtype, requires_grad=True) for _ in range(3)
    )
    allowed = torch.rand(2, 64, 64, device=CUDA) < 0.5
    allowed[0, 5], allowed[1] = False, False
    out = Attend()(queries, keys, values, Dense(allowed))
    assert out[1].abs().max() == 0
    assert out[0, :, 5].abs().max() == 0
    out.float().square().sum().backward()
    assert all(t.grad.isfinite().all() for t in (queries, keys, values))
    # The reference in float32: probabilities rounded to bf16 would be further off than the kernel.
    weights = Attend().weigh(queries.float(), keys.float(), Dense(allowed)).probabilities
    assert gap(out, weights @ values.float()) < (1e-4 if dtype == torch.float32 else 3e-2)


@pytest.mark.parametrize("mask", [
    Causal(), Causal() & Window(5), Padding(torch.tensor([7, 64])),
    Causal() & Documents(torch.arange(64).div(10, rounding_mode="floor").expand(2, -1)),
])  # fmt: skip
def test_every_mask_gives_what_the_written_out_weights_give(mask):
    queries, keys, values = (torch.randn(2, 4, 64, 32, device=CUDA) for _ in range(3))
    weights = Attend().weigh(queries, keys, mask).probabilities
    assert gap(Attend()(queries, keys, values, mask), weights @ values) < 1e-4


@pytest.mark.parametrize("name", TINY)
def test_a_model_compiles_whole_and_agrees(name):
    module = regard.build(regard.preset(name)).eval().to(CUDA)
    tokens = torch.randint(0, 256, (2, 32), device=CUDA)
    compiled = torch.compile(lambda t: forward(module, t), fullgraph=True)
    assert gap(compiled(tokens), forward(module, tokens)) < 5e-4


def test_recording_a_compiled_model_changes_nothing():
    module = regard.build(regard.preset("gpt2-tiny")).eval().to(CUDA)
    tokens = torch.randint(0, 256, (2, 32), device=CUDA)
    compiled = torch.compile(module)
    expected = compiled(tokens)
    with regard.record(compiled) as tape:
        found = compiled(tokens)
    assert gap(found, expected) < 5e-4
    assert tape["decoder.blocks.1.attention"].probabilities.shape == (2, 4, 32, 32)


def test_lengths_on_the_host_or_the_gpu_mean_the_same():
    module = regard.build(regard.preset("bert-tiny")).eval().to(CUDA)
    tokens = torch.randint(0, 256, (2, 16), device=CUDA)
    lengths = torch.tensor([16, 3])
    assert torch.equal(module(tokens, lengths=lengths), module(tokens, lengths=lengths.to(CUDA)))


def test_tokens_on_another_device_are_refused_in_one_sentence():
    module = regard.build(regard.preset("gpt2-tiny")).to(CUDA)
    with pytest.raises(regard.RegardError, match="the token ids are on cpu but the model is on"):
        module(torch.zeros(1, 4, dtype=torch.long))
