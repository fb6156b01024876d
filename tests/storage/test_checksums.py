"""No flipped bit and no missing byte of a file of tensors goes unnoticed."""

import json
import random
import tracemalloc
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from regard.errors import RegardError
from regard.storage.tensors import BLANK, TensorFolder, _seal, verified, verify, write_safetensors

TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "é.b": torch.tensor([True, False]),
    "none": torch.zeros(0, 4),
    "h": torch.ones(3, dtype=torch.bfloat16),
}


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "x.safetensors"
    write_safetensors(TENSORS, path)
    return path


def refused(path: Path) -> str:
    """What is said of a file that is checked, and as well where it is read."""
    said = []
    for ask in (verify, lambda path: list(verified(path))):
        with pytest.raises(RegardError) as caught:
            ask(path)
        said.append(str(caught.value))
    library = "Error while deserializing"  # it names any one of the tensors that are wrong
    assert said[0] == said[1] or all(library in one for one in said)
    assert said[0].startswith(f"{path} is damaged or cut off (")
    assert "\n" not in said[0]
    return said[0]


def test_the_library_reads_the_file_as_ever(file):
    found = load_file(file)
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    assert safe_open(file, "pt").metadata()["format"] == "pt"
    verify(file)


def test_what_is_read_is_what_was_written(file):
    found = dict(verified(file))
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor)


def test_what_is_read_stays_when_the_file_goes(tmp_path):
    path, numbers = tmp_path / "x.safetensors", torch.randn(3, 1 << 20)  # several pieces
    write_safetensors({"a": numbers, "b": numbers[0]}, path)
    found = dict(verified(path))
    path.write_bytes(b"")
    assert torch.equal(found["a"], numbers)
    assert torch.equal(found["b"], numbers[0])


def test_files_of_others_are_read_too_but_for_types_that_torch_lacks(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file(TENSORS, path)
    assert torch.equal(dict(verified(path))["a"], TENSORS["a"])
    text = b'{"a":{"dtype":"F8_E8M0","shape":[2],"data_offsets":[0,2]}}'
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\1\2")
    verify(path)
    with pytest.raises(RegardError, match="tensor a holds F8_E8M0, which torch has no type for"):
        list(verified(path))


def test_each_tensor_starts_at_a_multiple_of_its_elements(tmp_path):
    write_safetensors({"odd": torch.ones(3, dtype=torch.uint8), **TENSORS}, tmp_path / "x")
    text = (tmp_path / "x").read_bytes()
    length = int.from_bytes(text[:8], "little")
    entries = json.loads(text[8 : 8 + length])
    assert length % 8 == 0
    widths = {"F32": 4, "BF16": 2, "BOOL": 1, "U8": 1}
    del entries["__metadata__"]
    assert [e["data_offsets"][0] % widths[e["dtype"]] for e in entries.values()] == [0] * 5


def test_every_flipped_bit_of_a_small_file_is_noticed(tmp_path):
    """All bits of the length, the header and the data, one by one."""
    path = tmp_path / "x.safetensors"
    write_safetensors({"a": torch.arange(2.0), "none": torch.zeros(0)}, path)
    whole = bytearray(path.read_bytes())
    with path.open("r+b", buffering=0) as file:
        for bit in range(8 * len(whole)):
            place, flipped = bit // 8, whole[bit // 8] ^ 1 << bit % 8
            file.seek(place)
            file.write(bytes([flipped]))
            refused(path)
            file.seek(place)
            file.write(whole[place : place + 1])
    verify(path)


def test_a_flipped_bit_of_a_number_is_told_with_its_tensor(tmp_path):
    path = tmp_path / "x.safetensors"
    tensors = {name: torch.randn(100, 100) for name in ("first", "second")}
    write_safetensors(tensors, path)
    whole, dice = path.read_bytes(), random.Random(0)
    for _ in range(100):
        bit = dice.randrange(8 * 80_000)
        place = len(whole) - 80_000 + bit // 8
        damaged = bytearray(whole)
        damaged[place] ^= 1 << bit % 8
        path.write_bytes(damaged)
        name = "first" if bit // 8 < 40_000 else "second"
        assert f"(tensor {name} is not what was written)" in refused(path)


def test_a_file_that_was_cut_anywhere_is_refused(file):
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        refused(file)
    file.write_bytes(whole + b"\0")
    refused(file)


def forged(path: Path, change) -> None:
    """Change the header of a file and seal it again."""
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    header["__metadata__"]["seal"] = BLANK.decode()
    change(header)
    text = json.dumps(header).encode()
    text = text.replace(BLANK, _seal(text), 1)
    path.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + length :])


def test_a_tensor_without_a_checksum_among_others_that_have_one_is_told(file):
    def forget(header):
        sums = json.loads(header["__metadata__"]["checksums"])
        del sums["h"]
        header["__metadata__"]["checksums"] = json.dumps(sums)

    forged(file, forget)
    assert "(tensor h has no checksum)" in refused(file)


@pytest.mark.parametrize(("key", "value"), [("shape", [3, 2]), ("dtype", "I32")])
def test_a_checksum_is_of_the_shape_and_type_too(file, key, value):
    forged(file, lambda header: header["a"].update({key: value}))
    assert "(tensor a is not what was written)" in refused(file)


@pytest.mark.parametrize("sums", ["[]", "3", "", "[" * 10_000, '{"a": 1, "a": [2]}', "NaN"])
def test_checksums_that_are_none_are_told_and_not_tripped_over(file, sums):
    forged(file, lambda header: header["__metadata__"].update(checksums=sums))
    refused(file)


def test_files_of_others_have_no_checksums_and_pass(tmp_path):
    path = tmp_path / "x.safetensors"
    for metadata in ({"format": "pt"}, None, {"anything": "else"}):
        save_file(TENSORS, path, metadata=metadata)
        verify(path)
        path.write_bytes(path.read_bytes()[:-1])  # which is told all the same
        refused(path)


def test_checking_takes_no_memory_for_the_tensors(tmp_path):
    path = tmp_path / "x.safetensors"
    write_safetensors({"a": torch.zeros(8 << 20)}, path)  # 32 MiB
    tracemalloc.start()
    verify(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 3 << 20


@pytest.mark.parametrize("length", [2**40, 2**63, 90 << 20])
def test_a_giant_header_is_refused_before_it_is_read(tmp_path, length):
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(length.to_bytes(8, "little"))
        file.truncate(min(length, 100 << 20))  # sparse
    refused(path)
    with pytest.raises(RegardError, match=r"model\.safetensors is damaged or cut off"):
        TensorFolder(tmp_path)
