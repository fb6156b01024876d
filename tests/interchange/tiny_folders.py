"""Small folders to spoil, and what to say of them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import regard
from regard import RegardError, build, preset
from regard.models.transformer.model import Transformer

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
FAMILIES = ("gpt2", "bert", "llama", "t5", "marian")


def tiny(name: str) -> Transformer:
    """A model with every weight drawn wide, so that none can be lost unnoticed."""
    model = build(preset(f"{name}-tiny")).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.3)
    return model


def change_config(path: Path, remove: tuple[str, ...] = (), **changes: object) -> None:
    config = json.loads((path / "config.json").read_text()) | changes
    kept = {key: value for key, value in config.items() if key not in remove}
    (path / "config.json").write_text(json.dumps(kept))


def change_tensors(path: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    tensors = change(load_file(path / WEIGHTS))
    # Copied, since safetensors refuses tensors that share memory.
    save_file({name: t.clone() for name, t in tensors.items()}, path / WEIGHTS, {"format": "pt"})


def split(path: Path) -> dict[str, str]:
    """Write a folder's weights as several files with an index; returns where each tensor is."""
    regard.save(regard.load(path), path, shard_bytes=20_000)
    return json.loads((path / INDEX).read_text())["weight_map"]


def refusal(action: Callable[[], object]) -> str:
    """What the one error says; anything else that is raised fails the test."""
    with pytest.raises(RegardError) as caught:
        action()
    message = str(caught.value)
    assert message
    assert "Traceback" not in message
    return message


def refused(path: Path) -> str:
    return refusal(lambda: regard.load(path))


def logits(module: Transformer) -> Tensor:
    tokens = torch.arange(3, 36)[None]
    source = tokens.flip(1)
    memory = module.encode(source) if module.config.kind == "encoder-decoder" else None
    with torch.no_grad():
        return module(tokens, memory)


def assert_loads_as(path: Path, expected: Transformer) -> None:
    module = regard.load(path).module
    assert module.config == expected.config
    for (name, one), (_, other) in zip(
        module.named_parameters(), expected.named_parameters(), strict=True
    ):
        assert torch.equal(one, other), name


def assert_agrees(path: Path, kind: type) -> None:
    """Our reading of a decoder-only folder and theirs give the same logits."""
    theirs, report = kind.from_pretrained(path, output_loading_info=True)
    assert not any(report.values())
    tokens = torch.arange(3, 36)[None]
    with torch.no_grad():
        expected = theirs(tokens).logits
    gap = (logits(regard.load(path).module) - expected).abs().max()
    assert gap < 2e-5 * expected.std()
