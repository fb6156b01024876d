"""Modules on `meta` take no memory, nor the time to import what torch would draw them with."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import regard
from regard.errors import RegardError
from regard.models.construction import made_on
from regard.models.registry import all_presets
from regard.models.transformer.presets import SIZES

NAMES = [*all_presets(), *(name for name in SIZES if "tiny" in name)]
WATCHED = """
import sys
import regard
for name in sys.argv[1:]:
    if name == "sympy":
        import sympy
    else:
        regard.build(name, "meta")
    heavy = {"torch._dynamo", "sympy"} & sys.modules.keys()
    if heavy:
        sys.exit(f"{name!r} imports {heavy}")
"""


def imported(*names: str) -> str:
    """What a process of its own says of the models that it builds."""
    command = [sys.executable, "-c", WATCHED, *names]
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stderr


def test_no_model_on_meta_imports_a_compiler():
    assert imported(*NAMES) == ""


def test_what_is_imported_would_be_seen():
    assert "sympy" in imported("sympy")


def test_elsewhere_numbers_are_drawn():
    with made_on("cpu"):
        first, second = nn.Embedding(7, 5), nn.Embedding(7, 5)
    assert abs(first.weight.std().item() - 1) < 0.5
    assert not torch.equal(first.weight, second.weight)


def test_the_same_numbers_as_without():
    torch.manual_seed(3)
    plain = nn.init.normal_(torch.empty(4, 6), 1.0, 0.5)
    torch.manual_seed(3)
    with made_on("cpu"):
        made = nn.init.normal_(torch.empty(4, 6), 1.0, 0.5)
    torch.manual_seed(3)
    with made_on("cpu"):
        again = torch.empty(4, 6).normal_(1.0, 0.5)
    assert torch.equal(made, plain)
    assert torch.equal(again, plain)


def test_a_device_that_is_not_there_is_told():
    with pytest.raises(RegardError, match="device 'nowhere' cannot be used here"):
        regard.build("gpt2-tiny", "nowhere")
