"""Checkpoints are there whole or not at all; the last few stay, and the best."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from regard.errors import RegardError
from regard.training import checkpoints as module
from regard.training.checkpoints import OPTIMIZER, PLACE, Checkpoints


def tensors(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "a": torch.randn(3, 4, generator=generator),
        "turned": torch.randn(3, 4, generator=generator).T,
        "half": torch.randn(5, generator=generator).bfloat16(),
    }


def save(kept: Checkpoints, step: int, best: bool = False) -> None:
    other = {"a/step": torch.tensor(float(step)), "a/momentum": torch.ones(3, 4)}
    kept.save(step, tensors(step), other, {"step": step, "best_loss": None}, best)


def on_disk(kept: Checkpoints) -> list[int]:
    kept.wait()
    return sorted(int(path.name) for path in kept.folder.iterdir())


def test_a_checkpoint_holds_weights_memories_and_the_place(tmp_path):
    kept = Checkpoints(tmp_path, keep=1)
    save(kept, 3)
    kept.close()
    wanted = tensors(3)
    for found in (kept.weights(3), load_file(kept.path(3) / "model.safetensors")):
        assert set(found) == set(wanted)
        for name, tensor in wanted.items():
            assert torch.equal(found[name], tensor)
            assert found[name].dtype == tensor.dtype
    assert load_file(kept.path(3) / OPTIMIZER)["a/step"].item() == 3
    assert json.loads((kept.path(3) / PLACE).read_text()) == {"step": 3, "best_loss": None}


def test_what_training_changes_meanwhile_is_not_in_it(tmp_path):
    kept = Checkpoints(tmp_path, keep=1)
    weights = {"a": torch.zeros(1000)}
    kept.save(1, weights, {}, {}, best=False)
    weights["a"].fill_(1)
    assert kept.weights(1)["a"].max() == 0
    kept.close()


@given(st.integers(0, 4), st.lists(st.booleans(), min_size=1, max_size=12))
def test_the_last_ones_and_the_best_stay_and_no_other(tmp_path_factory, keep, bests):
    kept = Checkpoints(tmp_path_factory.mktemp("run"), keep)
    best = None
    for step, is_best in enumerate(bests, 1):
        save(kept, 10 * step, is_best)
        best = 10 * step if is_best else best
        steps = [10 * s for s in range(1, step + 1)]
        wanted = set(steps[-max(keep, 1) :]) | ({best} if best else set())
        assert on_disk(kept) == sorted(wanted)
        assert kept.last(max(keep, 1)) == steps[-max(keep, 1) :]
    kept.close()


def test_a_write_that_fails_leaves_no_folder_and_is_told_in_one_sentence(tmp_path, monkeypatch):
    kept = Checkpoints(tmp_path, keep=2)
    save(kept, 1)
    kept.wait()

    def full(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_json", full)
    save(kept, 2)
    with pytest.raises(RegardError, match=r"cannot write checkpoints to .*: .*No space left"):
        kept.wait()
    assert on_disk(kept) == [1]
    assert [path.name for path in kept.folder.iterdir()] == ["1"]  # nothing hidden either
    monkeypatch.undo()
    save(kept, 3)
    assert on_disk(kept) == [1, 3]
    kept.close()


def test_closing_tells_of_the_last_write_and_ends_the_thread(tmp_path, monkeypatch):
    kept = Checkpoints(tmp_path / "file", keep=1)
    (tmp_path / "file").write_text("in the way")
    save(kept, 1)
    with pytest.raises(RegardError, match="cannot write checkpoints"):
        kept.close()
    with pytest.raises(RuntimeError, match="after shutdown"):
        save(kept, 2)


def test_the_same_step_twice_is_one_checkpoint(tmp_path):
    kept = Checkpoints(tmp_path, keep=1)
    save(kept, 4)
    save(kept, 4, best=True)
    assert on_disk(kept) == [4]
    assert kept.last(5) == [4]
    kept.close()
