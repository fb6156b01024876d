"""The FLOPs of a step: by hand for one model, and against torch's counter for all kinds."""

import pytest
import torch
from tiny_jobs import config_of
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.models.transformer import build
from regard.training.throughput import DATASHEETS, Peak, peak, work


def test_the_work_of_a_small_decoder_is_what_a_hand_counts():
    module = build(config_of("causal", vocabulary=100, layers=3, width=16, heads=2, hidden=40))
    # A layer: queries, keys, values 16×48, output 16×16, feed-forward 16×40 and 40×16.
    weights = 3 * (16 * 48 + 16 * 16 + 2 * 16 * 40) + 100 * 16  # and the output matrix
    attention = 3 * 16 * 2 * 2  # layers × width × (scores and mixing) × (multiply and add)
    rows, width = 4, 10
    forward = rows * width * (2 * weights + attention * width / 2)  # half of the keys are hidden
    assert work(module).step(rows * width, width) == 3 * forward


def counted(module, *, tokens, source=None) -> int:
    """torch's count of the matrix products of a forward pass."""
    # It does not know the CPU's fused attention, but knows the products it is made of.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        memory = None if source is None else module.encode(source)
        module(tokens, memory)
    return counter.get_total_flops()


CASES = [
    ("causal", {}),
    ("causal", {"tied": False, "gated": True, "kv_heads": 1}),
    ("causal", {"head_width": 12, "hidden": 20}),
    ("masked", {}),
    ("masked", {"head": "linear"}),
    ("pairs", {}),
    ("pairs", {"encoder_layers": 3, "kv_heads": 1, "head_width": 4}),
    ("pairs", {"source_vocabulary": 11, "tied": False}),
]


@pytest.mark.parametrize(("kind", "changes"), CASES)
def test_three_forward_passes_of_torchs_counter_are_a_step(kind, changes):
    """A backward pass counts twice. torch counts every pair of a causal layer's own attention,
    we count half of them: in `step`, twice the width does what torch does."""
    module = build(config_of(kind, **changes)).eval()
    rows, width, source_width = 3, 8, 5
    tokens = torch.randint(5, 11, (rows, width))
    found = work(module)
    if kind == "pairs":
        source = torch.randint(5, 11, (rows, source_width))
        step = found.step(rows * width, 2 * width, rows * source_width, source_width)
        assert step == 3 * counted(module, tokens=tokens, source=source)
    else:
        seen = width if kind == "masked" else 2 * width
        assert found.step(rows * width, seen) == 3 * counted(module, tokens=tokens)


def test_a_cpu_has_a_peak_measured_here():
    found = peak(torch.device("cpu"), "float32")
    assert found.rate > 1e8
    assert "float32 matrix product, measured here" in found.words()


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("NVIDIA L40", None),
        ("NVIDIA A10G", None),
    ],
)
def test_a_known_gpu_has_its_datasheets_peak_and_a_cousin_has_not(monkeypatch, name, rate):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr("regard.training.throughput._fastest_product", lambda *given: 1.0)
    found = peak(torch.device("cuda"), "bf16")
    assert found.rate == (rate or 1.0)
    assert peak(torch.device("cuda"), "float32").rate == 1.0
    assert all(1e13 < known < 1e16 for known in DATASHEETS.values())


def test_a_peak_reads_well():
    assert Peak(989e12, "bf16 by the datasheet").words().startswith("989 TFLOP/s bf16")
