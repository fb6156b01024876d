"""Checkpoints are there whole or not at all; the last few stay, and the best."""

import errno
import os
import re
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from regard.errors import RegardError
from regard.storage.writing import LEFT
from regard.training.checkpoints import saving as module
from regard.training.checkpoints.reading import Checkpoint, Place, sound
from regard.training.checkpoints.saving import Checkpoints
from regard.training.distributed.processes import ALONE


def tensors(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "a": torch.randn(3, 4, generator=generator),
        "turned": torch.randn(3, 4, generator=generator).T,
        "half": torch.randn(5, generator=generator).bfloat16(),
    }


BYTES = 48 + 48 + 10 + 4 + 48  # of all tensors below


def save(kept: Checkpoints, step: int, best: int = 0, regular: bool = True) -> None:
    other = {"a/step": torch.tensor(float(step)), "a/momentum": torch.ones(3, 4)}
    kept.save(Place(step=step, best_step=best, regular=regular), tensors(step), other)


def on_disk(kept: Checkpoints) -> list[int]:
    kept.wait()
    return sorted(int(path.name) for path in kept.folder.iterdir())


def writer(folder: Path, keep: int = 1, **more) -> Checkpoints:
    return Checkpoints(folder, keep, ALONE, **more)


def test_a_checkpoint_holds_weights_memories_and_the_place(tmp_path):
    kept = writer(tmp_path, about={"data": "some"})
    place = Place(3, 1, "order", 99, 2.5, 0.25, 2, 1, True, False, 1234)
    other = {"a/step": torch.tensor(3.0), "a/momentum": torch.ones(3, 4)}
    kept.save(place, tensors(3), other)
    kept.close()
    wanted = tensors(3)
    stored = Checkpoint(kept.path(3))
    stored.verify()
    for found in (stored.weights(), load_file(kept.path(3) / "model.safetensors")):
        assert set(found) == set(wanted)
        for name, tensor in wanted.items():
            assert torch.equal(found[name], tensor)
            assert found[name].dtype == tensor.dtype
    assert load_file(kept.path(3) / "optimizer.safetensors")["a/step"].item() == 3
    assert stored.place == place
    assert stored.about == {"data": "some"}
    names = {path.name for path in kept.path(3).iterdir()}
    assert names == {"model.safetensors", "optimizer.safetensors", "place.json"}


def test_what_training_changes_meanwhile_is_not_in_it(tmp_path):
    kept = writer(tmp_path)
    weights = {"a": torch.zeros(1000), "b": torch.zeros(10, 10).T}
    kept.save(Place(1), weights, {})
    for weight in weights.values():
        weight.fill_(1)
    assert kept.open(1).weights()["a"].max() == 0
    assert kept.open(1).weights()["b"].max() == 0
    kept.close()


# Which ones stay


class Saved(NamedTuple):
    regular: bool
    best: bool = False  # if it is regular
    further: bool = True  # than the one before: else it is of the same step
    again: bool = False  # the run is begun anew before it


saves = st.lists(st.builds(Saved, *[st.booleans()] * 4), min_size=1, max_size=12)


@given(st.integers(0, 4), saves)
def test_the_last_ones_and_the_best_stay_and_no_other(tmp_path_factory, keep, history):
    """All that was ever saved, judged anew each time: that one, the best, the last regular ones."""
    folder = tmp_path_factory.mktemp("run")
    kept, step, best, regular = writer(folder, keep), 10, 0, []
    for one in history:
        if one.again:
            kept.close()
            kept = writer(folder, keep, found=sound(folder)[0])
        step += 10 * one.further
        stays = one.regular or step in regular  # one that stays is not replaced by one that goes
        if stays:
            best = step if one.best else best
            regular = sorted({*regular, step})
        save(kept, step, best, stays)
        last = regular[-max(keep, 1) :]
        assert on_disk(kept) == sorted({step, *last} | ({best} if best else set()))
        assert kept.last(max(keep, 1)) == last
    kept.close()


def test_the_same_step_twice_is_one_checkpoint(tmp_path):
    kept = writer(tmp_path)
    save(kept, 4)
    save(kept, 4, best=4)
    assert on_disk(kept) == [4]
    assert kept.last(5) == [4]
    assert kept.open(4).place.best_step == 4
    kept.close()


def test_that_of_an_interruption_is_none_of_the_last_and_goes_with_the_next(tmp_path):
    kept = writer(tmp_path, keep=3)
    save(kept, 2)
    save(kept, 3, regular=False)
    assert on_disk(kept) == [2, 3]
    assert kept.last(3) == [2]
    kept.close()
    found = sound(tmp_path)[0]
    assert [one.place.regular for one in found] == [True, False]
    kept = writer(tmp_path, keep=3, found=found)
    assert kept.last(3) == [2]
    save(kept, 4)
    assert on_disk(kept) == [2, 4]
    kept.close()


def test_the_beginning_goes_as_soon_as_there_is_another_and_is_never_averaged(tmp_path):
    kept = writer(tmp_path)
    save(kept, 0)
    assert on_disk(kept) == [0]
    assert kept.last(2) == []
    save(kept, 2)
    assert on_disk(kept) == [2]
    kept.close()


def test_one_that_was_being_removed_when_a_run_was_killed_is_none(tmp_path, monkeypatch):
    kept = writer(tmp_path)
    save(kept, 2)
    kept.wait()
    gone = []

    def killed(path, **how):
        """One file is removed, and then no more."""
        gone.append(path)
        (Path(path) / "model.safetensors").unlink()

    monkeypatch.setattr(shutil, "rmtree", killed)
    save(kept, 4)
    kept.close()
    assert len(gone) == 1
    monkeypatch.undo()
    found, damaged = sound(tmp_path)
    assert ([one.place.step for one in found], damaged) == ([4], [])
    half, whole = sorted(path.name for path in kept.folder.iterdir())
    assert whole == "4"
    assert LEFT.fullmatch(half)  # which is swept away when its process is gone
    assert half.endswith(".partial")


# What cannot be written


def full(monkeypatch, name: str) -> None:
    """The disk is full behind the first bytes of what the function of that name writes."""

    def written(content, path, **how):
        Path(path).write_bytes(b"{")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, name, written)


@pytest.mark.parametrize("name", ["write_safetensors", "write_json"])
@pytest.mark.parametrize("ask", ["check", "wait", "save", "open", "close"])
def test_a_write_that_fails_leaves_no_folder_and_is_told_in_one_sentence(
    tmp_path, monkeypatch, name, ask
):
    kept = writer(tmp_path, keep=2)
    save(kept, 1)
    kept.wait()
    full(monkeypatch, name)
    save(kept, 2)
    kept._pending.exception()  # until it is over
    asking = {
        "check": kept.check,
        "wait": kept.wait,
        "save": lambda: save(kept, 3),
        "open": lambda: kept.open(1),
        "close": kept.close,
    }
    place = re.escape(str(kept.folder))
    words = f"^cannot write checkpoint 2: no space left in {place}: .*{BYTES} B are needed"
    with pytest.raises(RegardError, match=words) as told:
        asking[ask]()
    assert "\n" not in str(told.value)
    assert "the same command goes on from the last" in str(told.value)
    assert [path.name for path in kept.folder.iterdir()] == ["1"]  # nothing hidden either
    found, damaged = sound(tmp_path)
    assert ([one.place.step for one in found], damaged) == ([1], [])
    assert kept.last(9) == [1]
    if ask == "close":
        return
    monkeypatch.undo()
    save(kept, 4)
    assert on_disk(kept) == [1, 4]
    kept.close()


def test_an_error_that_is_not_the_disks_size_is_told_as_it_is(tmp_path):
    kept = writer(tmp_path)
    (tmp_path / "checkpoints").write_text("in the way")
    save(kept, 1)
    with pytest.raises(RegardError, match=r"cannot write checkpoint 1: \w+ exists; the ones"):
        kept.wait()
    kept.close()


def test_what_is_not_written_yet_is_nothing_to_complain_of(tmp_path, monkeypatch):
    kept, go = writer(tmp_path), threading.Event()
    plain = module.write_safetensors

    def slow(*given):
        go.wait(30)
        plain(*given)

    monkeypatch.setattr(module, "write_safetensors", slow)
    save(kept, 1)
    kept.check()
    assert not (kept.folder / "1").exists()
    go.set()
    kept.wait()
    assert on_disk(kept) == [1]
    kept.close()


def test_an_earlier_one_is_waited_for_so_that_two_are_never_half_written(tmp_path, monkeypatch):
    kept, writing, most = writer(tmp_path, keep=9), set(), []
    build = kept._build

    def watched(place, *given):
        writing.add(place.step)
        most.append(len(writing))
        build(place, *given)
        writing.remove(place.step)

    monkeypatch.setattr(kept, "_build", watched)
    for step in range(1, 5):
        save(kept, step)
        assert all((kept.folder / str(earlier)).is_dir() for earlier in range(1, step))
    kept.close()
    assert most == [1] * 4


def test_closing_tells_of_the_last_write_and_ends_the_thread(tmp_path):
    kept = writer(tmp_path)
    (tmp_path / "checkpoints").write_text("in the way")
    save(kept, 1)
    with pytest.raises(RegardError, match="cannot write checkpoint"):
        kept.close()
    with pytest.raises(RuntimeError, match="after shutdown"):
        save(kept, 2)


def test_who_leaves_with_another_error_is_not_told_of_a_write_too(tmp_path):
    kept = writer(tmp_path)
    (tmp_path / "checkpoints").write_text("in the way")
    save(kept, 1)
    kept.abandon()
    kept.close()
    with pytest.raises(RuntimeError, match="after shutdown"):
        save(kept, 2)


def test_what_was_there_before_stays_when_the_same_step_cannot_be_written_again(
    tmp_path, monkeypatch
):
    kept = writer(tmp_path)
    kept.save(replace(Place(4), regular=False), tensors(4), {})
    kept.wait()
    full(monkeypatch, "write_json")
    save(kept, 4)
    with pytest.raises(RegardError, match="no space left"):
        kept.wait()
    kept.close()
    found, damaged = sound(tmp_path)
    assert ([one.place.regular for one in found], damaged) == ([False], [])
    assert all(torch.equal(found[0].weights()[n], t) for n, t in tensors(4).items())


def test_a_share_is_taken_in_where_a_network_disk_keeps_what_was_removed(tmp_path):
    """Another process's files, of whose folder something is left as `.nfs…` for a while."""
    kept = Checkpoints(tmp_path, 1, replace(ALONE, count=2))
    share = kept._share(4, 1)
    share.mkdir(parents=True)
    (share / "model-00002-of-00002.safetensors").write_bytes(b"")
    (share / module.ROWS).write_text("{}")
    (share / ".nfs0001").write_text("")
    (tmp_path / "whole").mkdir()
    assert kept._taken(share, tmp_path / "whole") == {}
    assert [path.name for path in (tmp_path / "whole").iterdir()] == [
        "model-00002-of-00002.safetensors"
    ]
    assert not share.exists()


def test_a_share_that_is_a_link_goes_and_what_it_names_stays(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "rows.json").write_text("mine")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / ".4.share-1").symlink_to("../precious")
    kept = writer(tmp_path)
    kept.clean()
    kept.close()
    assert list((tmp_path / "checkpoints").iterdir()) == []
    assert (tmp_path / "precious" / "rows.json").read_text() == "mine"
