"""What is missing, damaged or foreign in a folder is named, all of it at once."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_folders import (
    FAMILIES,
    INDEX,
    WEIGHTS,
    change_config,
    change_tensors,
    refused,
    split,
)

from regard.terminal import LISTED


def test_everything_wrong_with_the_tensors_is_named_in_one_message(folder):
    path = folder("gpt2")
    missing = ("transformer.h.0.ln_1.weight", "transformer.h.1.mlp.c_fc.bias")

    def damage(tensors):
        kept = {name: t for name, t in tensors.items() if name not in missing}
        kept["transformer.wpe.weight"] = torch.zeros(63, 32)
        kept["transformer.h.0.attn.c_attn.weight"] = torch.zeros(96, 32)
        return kept | {"transformer.h.2.ln_1.weight": torch.zeros(32), "stray": torch.zeros(1)}

    change_tensors(path, damage)
    message = refused(path)
    assert "6 problems" in message
    assert message.count("\n") == 6
    lines = [
        "tensor transformer.h.0.ln_1.weight (32,) is missing",
        "tensor transformer.h.1.mlp.c_fc.bias (64,) is missing",
        "tensor transformer.wpe.weight should be (64, 32) but is (63, 32)",
        "tensor transformer.h.0.attn.c_attn.weight should be (32, 96) but is (96, 32)",
        "tensor transformer.h.2.ln_1.weight is unexpected",
        "tensor stray is unexpected",
    ]
    assert [line for line in lines if line not in message] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_that_is_taken_away_is_missed_by_its_name(folder, family):
    """Each together with as many others as one message names."""
    path = folder(family)
    whole = load_file(path / WEIGHTS)
    told = ("pooler", "cls.")  # parts of BERT that a file may lack altogether
    wanted = [name for name in whole if not any(part in name for part in told)]
    for first in range(0, len(wanted), LISTED):
        gone = wanted[first : first + LISTED]
        left = {name: tensor for name, tensor in whole.items() if name not in gone}
        change_tensors(path, lambda _, left=left: left)
        message = refused(path)
        assert [name for name in gone if f"tensor {name} (" not in message] == []


def test_an_untied_t5_without_its_output_matrix_is_refused(folder):
    path = folder("t5")
    change_config(path, remove=("scale_decoder_outputs",), tie_word_embeddings=False)
    assert "lm_head.weight" in refused(path)


def test_two_spellings_of_one_tensor_are_refused(folder):
    path = folder("bert")
    twin = {"bert.embeddings.LayerNorm.gamma": torch.zeros(32)}
    change_tensors(path, lambda tensors: tensors | twin)
    assert "bert.embeddings.LayerNorm" in refused(path)


@pytest.mark.parametrize("kept", [0, 4, 8, 9, 0.01, 0.5, 0.9, -1])
def test_a_file_that_was_cut_off_is_refused_by_name(folder, kept):
    path = folder("gpt2")
    whole = (path / WEIGHTS).read_bytes()
    size = int(kept * len(whole)) if isinstance(kept, float) else kept
    (path / WEIGHTS).write_bytes(whole[:size])
    message = refused(path)
    assert WEIGHTS in message
    assert "again" in message  # what to do


@pytest.mark.parametrize(
    "start", [b"\xff" * 8, (2**40).to_bytes(8, "little"), (3).to_bytes(8, "little")]
)
def test_a_header_of_an_absurd_length_is_refused(folder, start):
    path = folder("gpt2")
    whole = (path / WEIGHTS).read_bytes()
    (path / WEIGHTS).write_bytes(start + whole[8:])
    assert WEIGHTS in refused(path)


def test_shards_that_are_missing_or_cut_off_are_all_named(folder):
    path = folder("gpt2")
    shards = sorted(set(split(path).values()))
    assert len(shards) > 3
    (path / shards[0]).unlink()
    (path / shards[1]).unlink()
    (path / shards[2]).write_bytes(b"")
    message = refused(path)
    assert all(name in message for name in shards[:3])
    assert shards[3] not in message


def test_a_tensor_in_two_shards_is_refused(folder):
    path = folder("gpt2")
    shards = sorted(set(split(path).values()))
    one, other = (load_file(path / name) for name in shards[:2])
    twice = next(iter(one))
    save_file(other | {twice: one[twice]}, path / shards[1])
    assert f"tensor {twice} is in two files" in refused(path)


@pytest.mark.parametrize(
    "name",
    ["../outside.safetensors", "/outside.safetensors", "a/../../x.safetensors", "..", "", "x.bin"],
)
def test_an_index_may_name_only_safetensors_beside_it(folder, name):
    path = folder("gpt2")
    places = split(path)
    if name == "../outside.safetensors":  # even where the file is there and good
        (path / next(iter(places.values()))).rename(path / name)
    first = next(iter(places))
    (path / INDEX).write_text(json.dumps({"weight_map": places | {first: name}}))
    assert repr(name) in refused(path)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": 1}']
)
def test_an_index_that_lists_nothing_is_refused(folder, content):
    path = folder("gpt2")
    split(path)
    (path / INDEX).write_text(content)
    assert INDEX in refused(path)


def test_a_pickle_is_never_opened_and_the_message_says_how_to_convert_it(folder, tmp_path):
    path = folder("gpt2")
    (path / WEIGHTS).unlink()
    mark = tmp_path / "opened"
    # A pickle that, if loaded, makes a folder: os.mkdir(mark).
    (path / "pytorch_model.bin").write_bytes(f"cos\nmkdir\n(V{mark}\ntR.".encode())
    message = refused(path)
    assert not mark.exists()
    assert "pytorch_model.bin" in message
    assert "save_pretrained" in message


def test_a_folder_without_weights_and_a_pipe_for_a_pickle_is_refused_without_reading(folder):
    path = folder("gpt2")
    (path / WEIGHTS).unlink()
    os.mkfifo(path / "pytorch_model.bin")  # opening it would wait for ever
    assert "pytorch_model.bin" in refused(path)


def test_a_folder_without_weights_says_so(folder):
    path = folder("gpt2")
    (path / WEIGHTS).unlink()
    assert WEIGHTS in refused(path)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool, torch.float8_e4m3fn])
def test_weights_that_are_not_floating_point_are_refused_by_name(folder, dtype):
    path = folder("gpt2")
    names = ("transformer.wte.weight", "transformer.ln_f.bias")
    kind = {name: torch.zeros(256, 32).to(dtype) for name in names[:1]}
    kind[names[1]] = torch.zeros(32).to(dtype)
    change_tensors(path, lambda tensors: tensors | kind)
    message = refused(path)
    assert all(name in message for name in names)


def test_what_is_not_a_folder_is_refused(folder, tmp_path):
    path = folder("gpt2")
    for wrong in (tmp_path / "nowhere", path / "config.json", str(path / WEIGHTS), "a\0b"):
        message = refused(wrong)
        assert str(wrong) in message
        assert "is not a folder" in message


def test_a_path_too_long_to_exist_is_refused(tmp_path):
    assert "not a folder" in refused(tmp_path / ("x" * 5000))
