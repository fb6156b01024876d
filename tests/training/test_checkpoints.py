"""What a checkpoint says is believed when it is what was written, and put aside when it is not."""

import errno
import json
import math
import os
import re
import shutil
from dataclasses import asdict, fields
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import RegardError
from regard.storage import tensors, write_json
from regard.storage.tensors import write_safetensors
from regard.storage.writing import _host
from regard.training.checkpoints.reading import (
    Checkpoint,
    Place,
    sealed,
    sound,
    stored_steps,
    unsealed,
)
from regard.training.checkpoints.saving import Checkpoints
from regard.training.distributed import sharding
from regard.training.distributed.processes import ALONE

FILES = ("place.json", "model.safetensors", "optimizer.safetensors")
PLACE = Place(4, 1, "0123456789abcdef", 99, 2.5, 0.25, 2, 1, True, False, 1234)


def written(folder: Path, *steps: int) -> Path:
    """A run with checkpoints of these steps; the folder of the last."""
    kept = Checkpoints(folder, 99, ALONE, about={"data": "some"})
    for step in steps:
        place = Place(**{**asdict(PLACE), "step": step, "regular": True})
        kept.save(place, {"a": torch.full((2, 3), float(step))}, {"a/step": torch.tensor(1.0)})
    kept.close()
    return kept.path(steps[-1])


def rewritten(folder: Path, **changes: object) -> None:
    """Change what a place says, with a checksum that is right for it."""
    content = unsealed(folder / "place.json")
    write_json(sealed({**content, **changes}), folder / "place.json")


def broken(folder: Path) -> str:
    """The one sentence about a place that cannot be believed."""
    with pytest.raises(RegardError) as told:
        Checkpoint(folder)
    assert str(folder) in str(told.value)
    assert "\n" not in str(told.value)
    return str(told.value)


# Places


places = st.builds(
    Place,
    step=st.integers(0, 10**18),
    turn=st.integers(0, 9),
    order=st.text(),
    tokens=st.integers(0, 1 << 80),
    seconds=st.floats(0, 1e12),
    best_loss=st.floats(0, allow_nan=False),
    best_step=st.integers(0, 10**18),
    waited=st.integers(0, 99),
    cuts=st.integers(0, 99),
    due=st.booleans(),
    regular=st.booleans(),
    log=st.integers(0, 1 << 60),
)


@given(places)
def test_a_place_comes_back_from_json_as_it_was(place):
    assert Place.of(json.loads(json.dumps(place.table(), allow_nan=False))) == place


def test_no_best_yet_is_no_number_in_json():
    table = Place().table()
    assert table["best_loss"] is None
    assert Place.of(table).best_loss == math.inf


WRONG = {
    "step": (-1, 1.5, "4", None, True, [4]),
    "turn": (None, "1", False, 0.5),
    "order": (None, 7, ["x"]),
    "tokens": (None, "9", 1.5, True),
    "seconds": (None, "1", True, {}),
    "best_loss": ("inf", True, []),
    "best_step": (None, 1.5, "2"),
    "waited": (None, 0.5, True),
    "cuts": (None, 0.5, True),
    "due": (None, 0, 1, "true"),
    "regular": (None, 0, 1, "no"),
    "log": (-1, None, 0.5, True),
}


@pytest.mark.parametrize("name", [field.name for field in fields(Place)])
def test_a_place_of_wrong_types_or_without_a_word_is_refused(name):
    for value in WRONG[name]:
        with pytest.raises(RegardError, match=f"its {name} is|before the beginning"):
            Place.of({**PLACE.table(), name: value})
    table = PLACE.table()
    del table[name]
    if name == "cuts":  # nobody counted them at first
        assert Place.of(table).cuts == 0
        return
    with pytest.raises(RegardError, match=f"its {name} is None"):
        Place.of(table)


# What is in the folder


def test_what_is_whole_is_read_back(tmp_path):
    folder = written(tmp_path, 4)
    stored = Checkpoint(folder)
    stored.verify()
    assert stored.names("optimizer") == ["a/step"]
    assert stored.about == {"data": "some"}
    room = {"a": torch.zeros(2, 3)}
    stored.fill("model", room)
    assert torch.equal(room["a"], torch.full((2, 3), 4.0))
    with pytest.raises(RegardError, match=r"shape \(2, 3\) in .*4, but \(3, 2\) is needed"):
        stored.fill("model", {"a": torch.zeros(3, 2)})
    with pytest.raises(RegardError, match="holds no tensor b"):
        stored.fill("model", {"b": torch.zeros(2)})


def test_every_flipped_bit_of_a_place_is_noticed_or_harmless(tmp_path):
    folder = written(tmp_path, 4)
    path = folder / "place.json"
    plain = path.read_bytes()
    whole, harmless = Checkpoint(folder), 0
    expected = whole.place, whole.about, whole.files
    for bit in range(8 * len(plain)):
        flipped = bytearray(plain)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            found = Checkpoint(folder)
        except RegardError:
            continue
        harmless += 1
        assert (found.place, found.about, found.files) == expected, bit
    assert harmless < 8  # such as E for e in a number


@pytest.mark.parametrize("name", FILES)
def test_every_end_that_is_cut_off_is_noticed(tmp_path, name):
    folder = written(tmp_path, 4)
    plain = (folder / name).read_bytes()
    last = len(plain) - (name == "place.json")  # a newline less is no less
    for size in range(last):
        (folder / name).write_bytes(plain[:size])
        with pytest.raises(RegardError):
            Checkpoint(folder).verify()
    (folder / name).unlink()
    with pytest.raises(RegardError, match=name):
        Checkpoint(folder).verify()


@pytest.mark.parametrize("name", FILES[1:])
def test_a_flipped_bit_of_a_tensor_is_noticed_and_the_tensor_named(tmp_path, name):
    folder = written(tmp_path, 4)
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).write_bytes(content)
    tensor = {"model.safetensors": "a", "optimizer.safetensors": "a/step"}[name]
    with pytest.raises(RegardError, match=rf"{name} is damaged.*tensor {tensor} is not what"):
        Checkpoint(folder).verify()


HOSTILE = [
    "../x.safetensors",
    "/etc/passwd",
    "model.safetensors/../../x.safetensors",
    "x.safetensors",
    "model.bin",
    "model-1-of-1.safetensors",
    "model.safetensors\n",
    "",
    ".",
    5,
    None,
    ["model.safetensors"],
    {"model.safetensors": 1},
]


@pytest.mark.parametrize("name", HOSTILE, ids=repr)
def test_a_name_that_is_no_file_of_a_checkpoint_is_not_opened(tmp_path, name, monkeypatch):
    folder = written(tmp_path, 4)
    write_safetensors({"a": torch.ones(2, 3)}, folder.parent / "x.safetensors")
    write_safetensors({"a": torch.ones(2, 3)}, folder / "x.safetensors")
    files = {"model": [name], "optimizer": ["optimizer.safetensors"]}
    rewritten(folder, files=files)
    assert f"it names {name!r}, which is no file" in broken(folder)


WRONGS = {
    "format": [0, "1", None],
    "place": [[], None, "4", 4, {}],
    "about": [None, 5, "x", ["x"]],
    "files": [None, [], 5, {}, {"model": []}, {"model": 5, "optimizer": []}, {"model": None}],
    "rows": [None, [], "x", 7],
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in WRONGS.items() for value in values]
)
def test_what_is_of_another_kind_than_it_should_be_is_told(tmp_path, key, value):
    folder = written(tmp_path, 4)
    rewritten(folder, **{key: value})
    assert re.search(r"place\.json is damaged: ", broken(folder))


def test_what_a_newer_version_wrote_is_no_damage_and_stays(tmp_path):
    folder = written(tmp_path, 4)
    rewritten(folder, format=2)
    with pytest.raises(RegardError, match="written by a newer version"):
        sound(tmp_path)
    assert folder.is_dir()


@pytest.mark.parametrize("key", WRONGS)
def test_what_is_missing_is_told(tmp_path, key):
    folder = written(tmp_path, 4)
    content = unsealed(folder / "place.json")
    del content[key]
    write_json(sealed(content), folder / "place.json")
    assert f"place.json is damaged: {key!r}" in broken(folder)


@pytest.mark.parametrize(
    "rows",
    [
        {"model.safetensors": 5},
        {"model.safetensors": {"a": {"shape": [2, 3], "first": 0, "last": 1}}},
        {"model.safetensors": {"a": {"shape": [4, 3], "first": 0, "last": 2}}},
        {"model.safetensors": {"a": {"shape": "x", "first": [], "last": None}}},
        {"model.safetensors": {"b": {"shape": [2, 3], "first": 0, "last": 2}}},
        {"model.safetensors": {"a": {"shape": [1 << 70, 3], "first": 0, "last": 2}}},
    ],
)
def test_rows_that_no_file_holds_are_told(tmp_path, rows):
    folder = written(tmp_path, 4)
    rewritten(folder, rows=rows)
    assert len(broken(folder)) < 400


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"5", b"{}", b'{"digest": "x"}', b"\xff\xfe", b"[" * 10**6, b'{"step": NaN}'],
    ids=["empty", "list", "number", "object", "digest", "no text", "bomb", "NaN"],
)
def test_what_is_no_place_at_all_is_told(tmp_path, content):
    folder = written(tmp_path, 4)
    (folder / "place.json").write_bytes(content)
    broken(folder)


def test_files_that_are_not_there_or_no_files_are_told(tmp_path):
    folder = written(tmp_path, 4)
    (folder / "model.safetensors").unlink()
    assert "model.safetensors is missing" in broken(folder)
    (folder / "model.safetensors").mkdir()
    assert "model.safetensors" in broken(folder)
    shutil.rmtree(folder)
    folder.mkdir()
    assert "has no place.json" in broken(folder)


# Which ones are sound


def test_the_steps_are_those_of_folders_with_a_number_for_a_name(tmp_path):
    assert stored_steps(tmp_path) == []
    for name in ("10", "9", "0", "007", "-1", "1e3", "4.damaged", ".5.partial", "1" * 19, "²", "٣"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    (tmp_path / "checkpoints" / "11").touch()
    assert stored_steps(tmp_path) == [0, 9, 10]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("spoil", [flip, Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_damaged_one_is_named_and_put_aside_and_the_others_are_taken(tmp_path, name, spoil):
    written(tmp_path, 2, 4, 6)
    spoil(tmp_path / "checkpoints" / "6" / name)
    found, sentences = sound(tmp_path)
    assert [one.place.step for one in found] == [2, 4]
    (sentence,) = sentences
    assert sentence.startswith("checkpoint 6 is damaged and was put aside: ")
    assert name in sentence
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert names == {"2", "4", "6.damaged"}
    assert sound(tmp_path)[1] == []  # it is told once


def test_all_damaged_ones_are_named_and_an_earlier_one_makes_room(tmp_path):
    for _ in range(2):
        written(tmp_path, 2, 4)
        for step in ("2", "4"):
            flip(tmp_path / "checkpoints" / step / "model.safetensors")
        found, sentences = sound(tmp_path)
        assert found == []
        assert [sentence[:13] for sentence in sentences] == ["checkpoint 2 ", "checkpoint 4 "]
    assert stored_steps(tmp_path) == []


def test_all_that_is_wrong_with_one_is_told_in_one_line(tmp_path):
    folder = written(tmp_path, 4)
    rewritten(folder, rows={"model.safetensors": {"a": {"shape": [4, 3], "first": 1, "last": 3}}})
    (sentence,) = sound(tmp_path)[1]
    assert "\n" not in sentence
    assert "rows 0 to 1 are in no file; tensor a: rows 3 to 4 are in no file" in sentence


def test_one_under_another_ones_name_is_none(tmp_path):
    written(tmp_path, 2, 4)
    (tmp_path / "checkpoints" / "4").rename(tmp_path / "checkpoints" / "9")
    found, sentences = sound(tmp_path)
    assert [one.place.step for one in found] == [2]
    assert "9 says that it is of step 4" in sentences[0]


def test_what_was_killed_while_it_was_written_is_swept_away(tmp_path):
    folder = written(tmp_path, 2).parent
    gone = 2**22 + 1  # more than any process has
    (folder / f".4.{_host()}-{gone}-01234567.partial").mkdir()
    found, sentences = sound(tmp_path)
    assert ([one.place.step for one in found], sentences) == ([2], [])
    assert [path.name for path in folder.iterdir()] == ["2"]


def test_a_run_without_any_has_none(tmp_path):
    assert sound(tmp_path) == ([], [])


def refusing(monkeypatch, place, name, folder, error):
    """Let a function fail for all that lies in a folder."""
    real = getattr(place, name)

    def asked(path, *rest, **more):
        if str(path).startswith(f"{folder}/"):
            raise error
        return real(path, *rest, **more)

    monkeypatch.setattr(place, name, asked)


NOT_DAMAGE = (errno.EACCES, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
UNREADABLE = [
    *((os, "open", OSError(code, os.strerror(code))) for code in NOT_DAMAGE),
    *((module, "safe_open", FileNotFoundError("no such file")) for module in (sharding, tensors)),
    (sharding, "safe_open", MemoryError()),
]


@pytest.mark.parametrize(("place", "name", "error"), UNREADABLE)
def test_one_that_the_system_does_not_let_us_read_is_not_damaged(
    tmp_path, monkeypatch, place, name, error
):
    written(tmp_path, 2, 4)
    flip(tmp_path / "checkpoints" / "2" / "model.safetensors")
    before = {path: path.lstat().st_ino for path in tmp_path.rglob("*")}
    refusing(monkeypatch, place, name, tmp_path / "checkpoints" / "4", error)
    with pytest.raises(RegardError, match="; nothing was changed: ") as told:
        sound(tmp_path)
    assert "damaged" not in str(told.value)
    monkeypatch.undo()
    assert {path: path.lstat().st_ino for path in tmp_path.rglob("*")} == before


def test_one_whose_bytes_cannot_be_read_to_the_end_is_not_damaged(tmp_path, monkeypatch):
    written(tmp_path, 2)

    def stale(*rest):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(tensors, "_chunks", stale)
    with pytest.raises(RegardError, match="Stale file handle; nothing was changed"):
        sound(tmp_path)
    assert stored_steps(tmp_path) == [2]
