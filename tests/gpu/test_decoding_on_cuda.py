"""Searches on a GPU give what they give on a CPU."""

from dataclasses import replace

import pytest
import torch

from regard.decoding.decode_batch import DecodeBatch
from regard.decoding.search.beam import SearchResult, search
from regard.decoding.search.ensemble import Ensemble
from regard.decoding.search.speculative import Speculation
from regard.decoding.settings import Beam, Sampling
from regard.families import registry
from regard.models.construction import build
from regard.models.kernels import int8
from regard.models.kernels.int8 import Int8Linear, quantise
from regard.models.network import SequenceModule
from regard.models.recurrent.config import RecurrentConfig
from regard.models.transformer.model import Transformer
from regard.models.transformer.presets import preset

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def model(name: str, **changes: object) -> Transformer:
    """Weights drawn wide, so that no two answers are nearly alike."""
    module = build(replace(preset(name), **changes)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() == 2:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3)
    return module


@pytest.fixture(autouse=True)
def exact_products():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny"])
def test_rows_are_written_alike(name):
    module = model(name)
    prompts = [[1, 7, 9, 30], [1, 8], [1, 40, 41, 42, 43, 44]]
    asked = [
        Sampling(limit=12, temperature=0.0),
        Sampling(limit=20, top_p=0.9, top_k=50, seed=3, logprobs=2),
        Sampling(limit=16, min_p=0.05, repetition_penalty=1.3, seed=4),
    ]
    found = []
    for device in ("cpu", "cuda"):
        writing = DecodeBatch.begin(module.to(device), prompts, asked, context=64, device=device)
        tokens = []
        while writing.open:
            tokens += [(token.row, token.id, token.end) for token in writing.step()]
        found.append(tokens)
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["t5-tiny", "marian-tiny"])
@pytest.mark.parametrize("coverage", [0.0, 0.3])
def test_beams_find_the_same_with_the_same_attention(name, coverage):
    module = model(name)
    lengths = torch.tensor([5, 9, 2, 7])
    source = torch.randint(5, 256, (4, 9), generator=torch.Generator().manual_seed(1))
    beam = Beam(beams=4, n_best=2, attention=True, coverage_penalty=coverage)
    found = []
    for device in ("cpu", "cuda"):
        module.to(device)
        with torch.inference_mode():
            memory = module.encode(source.to(device), lengths)
        found.append(search(module, [[1]] * 4, [12] * 4, beam, device=device, memory=memory))
    for here, there in zip(*found, strict=True):
        for one, other in zip(here.hypotheses, there.hypotheses, strict=True):
            assert one.ids == other.ids
            assert one.worth == pytest.approx(other.worth, abs=1e-4)
            torch.testing.assert_close(one.attention, other.attention.cpu(), atol=1e-4, rtol=1e-3)


PROMPTS = [[1, 7, 9, 30], [1, 8], [1, 40, 41, 42, 43, 44]]


def written(steps: DecodeBatch | Speculation) -> list[list[tuple[int, str | None]]]:
    """The tokens of each row, and which ends it."""
    rows: list[list[tuple[int, str | None]]] = [[] for _ in PROMPTS]
    while steps.open:
        for token in steps.step():
            rows[token.row].append((token.id, token.end))
    return rows


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_proposes_and_the_model_judges_alike(temperature):
    target, draft = model("gpt2-tiny"), model("gpt2-tiny", layers=1)
    asked = [Sampling(limit=n, temperature=temperature, seed=n) for n in (20, 9, 16)]
    found, shares = [], []
    for device in ("cpu", "cuda"):
        steps = Speculation.begin(
            target.to(device), draft.to(device), PROMPTS, asked, context=64, device=device
        )
        found.append(written(steps))
        shares.append((steps.proposed, steps.accepted))
        if not temperature:
            plain = written(DecodeBatch.begin(target, PROMPTS, asked, context=64, device=device))
            assert plain == found[-1]
    assert found[0] == found[1]
    assert shares[0] == shares[1]


def searched(module: SequenceModule, device: str, beam: Beam) -> list[SearchResult]:
    """Four sources of different lengths."""
    lengths = torch.tensor([5, 9, 2, 7])
    source = torch.randint(5, 256, (4, 9), generator=torch.Generator().manual_seed(1))
    module.to(device)
    for part in module.modules():
        if isinstance(part, Int8Linear):
            part.unpack()  # the CPU's kernel rounds the vectors too, a GPU's does not
    with torch.inference_mode():
        memory = module.encode(source.to(device), lengths)
    return search(module, [[1]] * 4, [12] * 4, beam, device=device, memory=memory)


def assert_alike(one: list[SearchResult], other: list[SearchResult]) -> None:
    for here, there in zip(one, other, strict=True):
        assert [h.ids for h in here.hypotheses] == [t.ids for t in there.hypotheses]
        worths = [t.worth for t in there.hypotheses]
        assert [h.worth for h in here.hypotheses] == pytest.approx(worths, abs=1e-4)


def test_an_ensemble_finds_the_same():
    beam = Beam(beams=4, n_best=2)
    ensemble = Ensemble([model("marian-tiny"), model("t5-tiny")])
    assert_alike(searched(ensemble, "cpu", beam), searched(ensemble, "cuda", beam))


def test_eight_bit_weights_find_the_same():
    small, beam = quantise(model("marian-tiny")), Beam(beams=4, n_best=2)
    assert_alike(searched(small, "cpu", beam), searched(small, "cuda", beam))


def recurrent(**settings: object) -> SequenceModule:
    module = registry.build(RecurrentConfig(vocabulary=256, width=32, **settings)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.4)
    return module


@pytest.fixture
def exact_cells(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def test_recurrent_rows_are_written_alike(exact_cells):
    module = recurrent(cell="lstm", layers=2)
    asked = [Sampling(limit=12, temperature=0), Sampling(limit=20, seed=3), Sampling(limit=9)]
    found = []
    for device in ("cpu", "cuda"):
        steps = DecodeBatch.begin(module.to(device), PROMPTS, asked, context=64, device=device)
        found.append(written(steps))
    assert found[0] == found[1]


def test_recurrent_beams_find_the_same(exact_cells):
    pairs = {"kind": "encoder-decoder", "cell": "gru", "attention": "additive", "layers": 1}
    module, beam = recurrent(**pairs), Beam(beams=4, n_best=2)
    assert_alike(searched(module, "cpu", beam), searched(module, "cuda", beam))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_eight_bit_weights_give_what_their_rounded_weights_give(dtype):
    module = model("gpt2-tiny").to(dtype)
    small = quantise(module).cuda()
    rounded = model("gpt2-tiny").to(dtype)
    with torch.no_grad():
        for name, part in small.named_modules():
            if type(part).__name__ == "Int8Linear" and not name.startswith("head"):
                target = rounded.get_submodule(name)
                target.weight.copy_((part.weight.float() * part.scale.float().reshape(-1, 1)).cpu())
    tokens = torch.randint(5, 256, (3, 20), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        got = small.hidden(tokens.cuda()).float().cpu()
        wanted = rounded.cuda().hidden(tokens.cuda()).float().cpu()
    bound = 1e-4 if dtype == torch.float32 else 0.1
    assert (got - wanted).abs().max() <= bound * wanted.abs().max()


def test_eight_bit_weights_take_less_memory():
    module = model("gpt2", layers=2)

    def held(made: torch.nn.Module) -> int:
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        made.cuda()
        return torch.cuda.memory_allocated() - before

    small = quantise(module)
    linear = sum(p.numel() for n, p in module.named_parameters() if "block" in n and p.dim() == 2)
    saved = held(module) - held(small)
    assert saved > 3 * linear - module.config.vocabulary * module.config.width * 1.1


SHAPES = [(1, 48, 33), (5, 512, 100), (16, 300, 301), (33, 2048, 64), (64, 7, 1), (65, 64, 40)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_a_product_with_eight_bit_weights_is_the_one_of_its_numbers(
    rows, inputs, outputs, biased, dtype
):
    pytest.importorskip("triton")
    assert int8.fused() is not None, "Triton is there, and its kernel is not used"
    layer = Int8Linear(
        torch.randn(outputs, inputs), torch.randn(outputs).to(dtype) if biased else None
    ).cuda()
    x = torch.randn(rows, inputs).to(dtype).cuda()
    weight = layer.weight.double() * layer.scale.double()[:, None]
    wanted = x.double() @ weight.T + (layer.bias.double() if biased else 0.0)
    got = layer(x)
    assert got.dtype == dtype
    # Sums are made in float32; with more than 64 rows the weights are rounded to x's type too.
    rounding = {torch.float32: 0.0, torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
    added = (x.double().abs() @ weight.abs().T).amax()
    size = added if rows > 64 else wanted.abs().amax()
    assert (got.double() - wanted).abs().amax() <= rounding * size + 1e-6 * added
    assert torch.equal(layer(x[:, None])[:, 0], got)  # in any shape


def test_a_product_with_eight_bit_weights_does_not_feel_its_neighbours():
    pytest.importorskip("triton")
    layer, x = Int8Linear(torch.randn(64, 1000)).cuda(), torch.randn(40, 1000).cuda()
    together = layer(x)
    assert torch.equal(torch.cat([layer(row[None]) for row in x]), together)
    assert torch.equal(layer(x[:20]), together[:20])
