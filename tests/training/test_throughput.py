"""The most that a device can do."""

import pytest
import torch

from regard.training import throughput
from regard.training.datasheets import SHEETS
from regard.training.throughput import Peak, peak


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
    assert all(1e13 < sheet.half < 1e16 for sheet in SHEETS.values())


def test_a_peak_reads_well():
    assert Peak(989e12, "bf16 by the datasheet").words().startswith("989 TFLOP/s bf16")


def test_crowding_compares_all_threads_with_one_and_leaves_them(monkeypatch):
    before = torch.get_num_threads()
    asked = []

    def seconds(budget):
        asked.append(torch.get_num_threads())
        return [3.0, 5.0] if len(asked) == 1 else [0.5, 9.0]

    torch.set_num_threads(2)
    try:
        monkeypatch.setattr(throughput, "_seconds", seconds)
        assert throughput.crowding() == 8
        assert asked == [2, 1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    monkeypatch.undo()
    assert throughput.crowding() > 0
