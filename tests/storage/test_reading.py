"""Whoever made a file, reading it ends soon and, if it is bad, in one sentence."""

import os

import pytest

from regard.errors import RegardError
from regard.storage import read_json, write_json
from regard.storage.tensors import verify


def test_what_is_no_regular_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    for name in ("fifo", "zero", "folder"):
        with pytest.raises(RegardError, match=r"\(it is not a regular file\)"):
            verify(tmp_path / name)
        with pytest.raises(RegardError, match="not a regular file"):
            read_json(tmp_path / name)
    with pytest.raises(RegardError, match="circle is damaged or cut off"):
        verify(tmp_path / "circle")
    with pytest.raises(RegardError, match="circle is not readable JSON"):
        read_json(tmp_path / "circle")
    with pytest.raises(RegardError, match=r"has no x\.safetensors"):
        verify(tmp_path / "x.safetensors")


BAD_JSON = {
    "deep": '{"a":' * 100_000,
    "deep enough for what follows": '{"a":' * 500 + "1" + "}" * 500,
    "many": '{"a":[' + "[]," * (1 << 20) + "[]]}",
    "integer": '{"a":' + "9" * 1_000_000 + "}",
    "long integer": '{"a":' + "9" * 4000 + "}",
    "nan": '{"a": NaN}',
    "infinity": '{"a": -Infinity}',
    "infinite": '{"a": [1e999]}',
    "list": "[]",
    "half": '{"a": "\\ud8',
    "empty": "",
}


@pytest.mark.parametrize("content", BAD_JSON.values(), ids=BAD_JSON)
def test_json_that_is_absurd_is_one_sentence(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(RegardError) as caught:
        read_json(path)
    assert str(caught.value).startswith(f"{path} ")
    assert len(str(caught.value)) < 400


def test_json_that_is_too_large_is_refused_unread(tmp_path):
    path = tmp_path / "x.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(RegardError, match=r"it has 1099\.5 GB, more than the 67\.1 MB it may have"):
        read_json(path)
    path.write_text('{"a": 1}')
    assert read_json(path, most=8) == {"a": 1}
    with pytest.raises(RegardError, match=r"more than the 7 B it may have"):
        read_json(path, most=7)


def test_json_of_every_day_is_read(tmp_path):
    content = {"a": [1, -2.5, None, True, "ü"], "state": 2**128, "deep": [[[{}]]], "e": 1e-300}
    write_json(content, tmp_path / "x.json")
    assert read_json(tmp_path / "x.json") == content
