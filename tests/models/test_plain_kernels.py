"""Without any fast path everything holds as well, and one variable turns them all off."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import regard
from regard.models import kernels
from regard.models.construction import build
from regard.models.convolution.config import ConvolutionConfig
from regard.models.kernels import switches
from regard.models.recurrent.config import RecurrentConfig
from regard.models.transformer.presets import preset

HERE = Path(__file__).parent
CONFIGS = {
    "transformer": preset("gpt2-tiny"),
    "lstm": RecurrentConfig(vocabulary=99, width=16, layers=2),
    "gru": RecurrentConfig(vocabulary=99, width=16, cell="gru"),
    "convolution": ConvolutionConfig(vocabulary=99, width=16, layers=2),
}
ROWS = f"{HERE / 'test_rows_join_and_leave.py'}::test_one_leaves_and_one_joins_at_each_step"
FAMILIES = ("gpt2", "t5", "lstm", "lstm, general fed", "convolution, pairs", "captioner, lstm")
CORE = [HERE / "test_cells.py", *(f"{ROWS}[{family}]" for family in FAMILIES)]


def plainly(*command: object) -> str:
    """What a process prints that takes no fast path."""
    ran = subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, "REGARD_PLAIN": "1", "PYTHONPATH": str(Path(regard.__path__[0]).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    return ran.stdout


def answered() -> dict[str, list[float]]:
    """What some models say of a text, and how far each gradient is from nothing."""
    found = {}
    for name, config in CONFIGS.items():
        torch.manual_seed(0)
        model = build(config)
        logits = model.eval()(torch.arange(5, 45).view(2, 20))
        logits.square().mean().backward()
        norms = [float(weight.grad.norm()) for weight in model.parameters()]
        found[name] = [*logits[:, -1].flatten().tolist(), *norms]
    return found


def test_plain_paths_say_what_the_fast_ones_do():
    said = json.loads(plainly(__file__))
    assert said["report"] == ["all fast paths: off, REGARD_PLAIN is set"]
    for name, numbers in answered().items():
        assert said[name] == pytest.approx(numbers, rel=1e-4, abs=1e-5), name


def test_the_core_holds_on_plain_paths():
    assert " passed" in plainly("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *CORE)


def test_each_fast_path_says_whether_it_is_taken_and_why_not(monkeypatch: pytest.MonkeyPatch):
    said = kernels.report()
    assert len(said) == len({line.split(":")[0] for line in said}) >= 9
    assert all(re.fullmatch(r"[^:]+: (on|off, .+)", line) for line in said)
    monkeypatch.setattr(switches, "PLAIN", True)
    assert kernels.report() == ["all fast paths: off, REGARD_PLAIN is set"]


# What leans on torch's inside, and what is kept for a whole process.
INSIDE = re.compile(
    r"torch\._C\b|torch\.backends\b|torch\.ops\.(mkl|mkldnn|quantized)\b|\bset_num_threads\b"
    r"|_forward_(pre_)?hooks\b|torch\.(lstm|gru|rnn_tanh)\b|\bsdpa_kernel\b"
)
ELSEWHERE = {
    "comparison/growth.py",  # counts operations of attention written out
    "costs/trace/kernels.py",  # prices the calls of these kernels
    "costs/trace/tracer.py",  # asks which part of the backward pass is running
    "costs/trace/fake_device.py",  # of a device that is not there
    "families/word_vectors/processes.py",  # of a process of its own
}


def test_all_that_leans_on_torchs_inside_stands_in_one_place():
    root = Path(regard.__path__[0])
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if path.parent.name != "kernels" and INSIDE.search(path.read_text())
    }
    assert found <= ELSEWHERE


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({**answered(), "report": kernels.report()}))
