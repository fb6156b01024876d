"""What is written loads again, and what cannot be written is said in a sentence."""

import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file
from tiny_folders import (
    INDEX,
    WEIGHTS,
    assert_agrees,
    assert_loads_as,
    change_tensors,
    logits,
    refusal,
    split,
    tiny,
)

import regard
from regard import build, preset


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("gpt2-tiny", {"positions": "alibi"}, "positions = 'alibi'"),
        ("gpt2-tiny", {"kv_heads": 2}, "kv_heads = 2"),
        ("regard-2", {"query_key_norm": True}, "query_key_norm = True"),
        ("llama-tiny", {"gated": False}, "gated = False"),
        ("llama-tiny", {"norm_place": "post"}, "norm_place = 'post'"),
        ("t5-tiny", {"scale_scores": True}, "scale_scores = True"),
        ("bert-tiny", {"head_bias": False}, "head_bias = False"),
        ("bert-tiny", {"segments": 0}, "segments = 0"),
        ("marian-tiny", {"attention_bias": False}, "attention_bias = False"),
        ("transformer-tiny", {}, "sinusoidal"),
        ("regard-2-encoder", {}, "kind = 'encoder'"),
    ],
)
def test_a_model_no_family_can_hold_is_refused_with_the_reason(tmp_path, name, changes, named):
    model = build(replace(preset(name), vocabulary=64, **changes))
    message = refusal(lambda: regard.save(model, tmp_path / "out"))
    assert named in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpt2-tiny", {"rotary_base": 5e5}),
        ("gpt2-tiny", {"relative_buckets": 16}),
        ("llama-tiny", {"relative_distance": 256}),
    ],
)
def test_a_setting_that_a_model_does_not_use_does_not_stop_its_saving(tmp_path, name, changes):
    model = build(replace(preset(name), **changes)).eval()
    regard.save(model, tmp_path)
    assert torch.equal(logits(regard.load(tmp_path).module), logits(model))


@pytest.mark.parametrize("name", ["regard-4", "regard-12"])
def test_our_default_model_is_a_llama_to_transformers(tmp_path, name):
    config = preset(name)
    small = replace(config, vocabulary=64, width=32 * config.heads // 4, hidden=48, layers=2)
    model = build(small)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.3)
    regard.save(model, tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    assert said["model_type"] == "llama"
    assert_agrees(tmp_path, hf.LlamaForCausalLM)


@pytest.mark.parametrize(
    "changes",
    [{}, {"source_vocabulary": 64}, {"source_vocabulary": 512}, {"tied": False}],
    ids=["shared", "smaller source", "larger source", "untied"],
)
def test_a_marian_made_here_is_loaded_by_transformers(tmp_path, changes):
    model = build(replace(preset("marian-tiny"), **changes)).eval()
    torch.nn.init.normal_(model.head.bias)
    regard.save(model, tmp_path)
    theirs, report = hf.MarianMTModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    tokens = torch.arange(3, 36)[None]
    with torch.no_grad():
        expected = theirs(tokens.flip(1), decoder_input_ids=tokens).logits
    assert (logits(model) - expected).abs().max() < 2e-5 * expected.std()


def test_saving_over_the_folder_a_model_came_from_keeps_every_weight(folder):
    path = folder("llama")
    expected = regard.load(path).module
    held = {name: t.clone() for name, t in expected.named_parameters()}
    for shard_bytes in (20_000, 5_000_000_000, 10_000):
        model = regard.load(path)
        regard.save(model, path, shard_bytes)
        assert {n: torch.equal(p, held[n]) for n, p in model.module.named_parameters()} == (
            dict.fromkeys(held, True)
        )
        assert_loads_as(path, expected)


def test_a_folder_saved_again_in_other_shards_keeps_no_old_file(folder):
    path = folder("gpt2")
    split(path)
    assert not (path / WEIGHTS).exists()
    regard.save(regard.load(path), path)
    assert {p.name for p in path.iterdir()} == {"config.json", WEIGHTS}


def test_saving_takes_no_file_away_that_it_did_not_write(folder):
    path = folder("gpt2")
    others = ("model_of_yesterday.safetensors", "model-ema.safetensors", "tokenizer.json")
    for name in others:
        (path / name).write_text("keep me")
    split(path)
    regard.save(regard.load(path), path)
    assert [name for name in others if not (path / name).exists()] == []


def test_shards_hold_what_the_index_says_and_no_more_than_asked(folder):
    path = folder("llama")
    places = split(path)
    for name in set(places.values()):
        held = load_file(path / name)
        assert set(held) == {tensor for tensor, place in places.items() if place == name}
        assert len(held) == 1 or sum(t.nbytes for t in held.values()) <= 20_000
    total = json.loads((path / INDEX).read_text())["metadata"]["total_size"]
    assert total == sum(p.nbytes for p in regard.load(path).module.parameters())


def blocked_by_a_file(path: Path) -> Path:
    path.write_text("in the way")
    return path


def blocked_above(path: Path) -> Path:
    return blocked_by_a_file(path) / "below"


def blocked_weights(path: Path) -> Path:
    (path / WEIGHTS).mkdir(parents=True)
    return path


def blocked_config(path: Path) -> Path:
    (path / "config.json").mkdir(parents=True)
    return path


def not_writable(path: Path) -> Path:
    return Path("/proc")  # where not even root makes files


def not_a_path(path: Path) -> Path:
    return path / "a\0b"


@pytest.mark.parametrize(
    "blocked",
    [
        blocked_by_a_file,
        blocked_above,
        blocked_weights,
        blocked_config,
        not_writable,
        not_a_path,
    ],
)
def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path, blocked):
    path = blocked(tmp_path / "out")
    message = refusal(lambda: regard.save(tiny("gpt2"), path))
    assert str(path) in message
    assert "\n" not in message
    assert [p.name for p in tmp_path.rglob("*.partial")] == []  # and nothing half-written stays


# What may be written over


def kept(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.iterdir()}


@pytest.mark.parametrize(
    "files",
    [
        ("config.json",),
        (WEIGHTS,),
        ("model-00001-of-00002.safetensors",),
        (INDEX, "config.json"),
        ("run.toml", "config.json"),
        ("place.json",),
    ],
)
def test_a_model_is_not_saved_over_files_that_save_did_not_write(tmp_path, files):
    for name in files:
        (tmp_path / name).write_text('{"mine": 1}')
    before = kept(tmp_path)
    message = refusal(lambda: regard.save(tiny("gpt2"), tmp_path))
    assert "name another folder" in message
    assert str(tmp_path) in message
    assert kept(tmp_path) == before


def test_a_model_is_not_saved_over_another_that_it_was_not_loaded_from(folder, tmp_path):
    theirs, link = folder("gpt2"), tmp_path / "link"
    change_tensors(theirs, lambda tensors: tensors)  # as another program writes them
    before = kept(theirs)
    model = regard.load(theirs)
    for other in (tiny("llama"), replace(model, origin=None), model.module):
        assert "would be lost" in refusal(lambda one=other: regard.save(one, theirs))
    assert kept(theirs) == before
    link.symlink_to(theirs)
    regard.save(model, link)
    assert_loads_as(theirs, model.module)


def test_a_folder_that_may_not_be_looked_into_is_one_sentence(tmp_path, monkeypatch):
    def refused(folder):
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    monkeypatch.setattr(regard.loading, "strange_files", refused)
    message = refusal(lambda: regard.save(tiny("gpt2"), tmp_path))
    assert message == f"cannot write {tmp_path}: Permission denied"


def test_what_save_wrote_it_writes_over_also_if_it_was_killed_between(tmp_path):
    regard.save(tiny("gpt2"), tmp_path, shard_bytes=20_000)
    (tmp_path / INDEX).unlink()
    (tmp_path / "config.json").unlink()
    (tmp_path / "notes.md").write_text("mine")
    regard.save(tiny("llama"), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", WEIGHTS, "notes.md"}


def test_shards_of_another_model_in_the_folder_stay(folder):
    path = folder("gpt2")
    change_tensors(path, lambda tensors: tensors)
    other = path / "model-00003-of-00007.safetensors"
    other.write_text("half of a download")
    model = regard.load(path)
    regard.save(model, path)
    regard.save(model, path, shard_bytes=20_000)
    assert other.read_text() == "half of a download"
