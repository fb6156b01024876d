"""A run's folder says all that made it, and opens again as it was."""

import errno
import itertools
import os
import tomllib
from dataclasses import fields, replace

import pytest
import tomli_w
import torch
from tiny_jobs import config_of, weights_of

from regard.errors import RegardError
from regard.families import weights
from regard.families.settings import ModelSettings, Settings
from regard.models.construction import build
from regard.models.transformer.config import RotaryScaling, TransformerConfig
from regard.models.transformer.presets import SIZES, preset
from regard.runs import recipes, stored_run
from regard.text.learning import learn
from regard.text.tokenizer import Tokenizer

TEXT = ["some text to learn tokens from, and numbers 0123456789"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return learn("char", TEXT)


SETTINGS = Settings().changed(
    {
        "data": {"train": ["a file.txt", 'quo"ted\\ü\n.txt'], "held_out": 0.25},
        "optimizer": {"peak": 1e-4, "epsilon": 1e-20},
        "training": {"seed": 2**63 - 1, "ema": 0.999, "tensorboard": True},
    },
    "test",
)


@pytest.mark.parametrize("name", [*SIZES, "regard-4", "regard-8-encoder"])
def test_run_toml_as_a_recipe_gives_the_settings_again(tmp_path, tokenizer, name):
    settings = replace(SETTINGS, model=ModelSettings(name, {"dropout": 0.25}))
    config = stored_run.config_for(settings.model, tokenizer, tokenizer)
    stored_run.write_run(tmp_path, settings, config, [tokenizer])
    for path in (tmp_path, tmp_path / "run.toml"):
        again = recipes.load(str(path))
        assert replace(again, model=settings.model) == settings
        assert stored_run.config_for(again.model, tokenizer, tokenizer) == config
        assert stored_run.spelled_out(again.model, config) == again.model  # twice too
    assert config.dropout == 0.25
    assert config.vocabulary == len(tokenizer)


def test_a_scaling_is_kept_and_so_is_its_absence(tmp_path, tokenizer):
    assert preset("llama-3.2-1b").rotary_scaling == RotaryScaling(factor=32.0)
    for number, scaling in enumerate((None, RotaryScaling("linear", 2.0), RotaryScaling(high=9.0))):
        model = ModelSettings("llama-3.2-1b", {"rotary_scaling": scaling})
        config = stored_run.config_for(model, tokenizer, tokenizer)
        assert config.rotary_scaling == scaling
        settings = replace(SETTINGS, model=model)
        stored_run.write_run(tmp_path / str(number), settings, config, [tokenizer])
        again = recipes.load(str(tmp_path / str(number))).model
        assert stored_run.config_for(again, tokenizer, tokenizer).rotary_scaling == scaling


def test_run_toml_spells_out_every_setting_so_that_presets_may_change(tmp_path, tokenizer):
    model = ModelSettings("gpt2-tiny", {})
    config = stored_run.config_for(model, tokenizer, tokenizer)
    stored_run.write_run(tmp_path, replace(SETTINGS, model=model), config, [tokenizer])
    written = tomllib.loads((tmp_path / "run.toml").read_text(encoding="utf-8"))
    learned = {"vocabulary", "source_vocabulary"}
    assert set(written["model"]) == {f.name for f in fields(TransformerConfig)} - learned | {
        "preset"
    }
    for name, table in SETTINGS.tables().items():
        if name != "model":
            assert set(written[name]) == set(table)
    assert written["versions"]["torch"] == torch.__version__


def save(folder, kind: str, tokenizers: list[Tokenizer], **changes):
    """A run of fresh weights, and the module that has them."""
    wanted = config_of(kind, **changes)
    model = stored_run.spelled_out(ModelSettings("gpt2-tiny"), wanted)
    settings = replace(SETTINGS, model=model)
    config = stored_run.config_for(model, tokenizers[0], tokenizers[-1])
    module = build(config)
    stored_run.write_run(folder, settings, config, tokenizers)
    stored_run.write_weights(folder, dict(module.named_parameters()))
    return module


@pytest.mark.parametrize("kind", ["causal", "masked", "pairs"])
def test_a_run_opens_with_the_weights_and_tokenizer_it_was_written_with(tmp_path, tokenizer, kind):
    module = save(tmp_path, kind, [tokenizer])
    run = stored_run.open_run(tmp_path)
    assert run.config == module.config
    assert run.tokenizer.fingerprint == tokenizer.fingerprint
    assert run.source_tokenizer is run.tokenizer
    assert not run.module.training
    found, wanted = weights_of(run.module), weights_of(module)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_two_vocabularies_stay_two(tmp_path, tokenizer):
    source = learn("char", ["other letters: äöü ßéà"])
    module = save(tmp_path, "pairs", [tokenizer, source])
    run = stored_run.open_run(tmp_path)
    assert run.source_tokenizer.fingerprint == source.fingerprint != run.tokenizer.fingerprint
    assert run.config.source_vocabulary == len(source)
    assert run.config == module.config


def test_weights_in_bfloat16_are_written_as_float32_without_loss(tmp_path, tokenizer):
    save(tmp_path, "causal", [tokenizer])
    module = build(stored_run.open_run(tmp_path).config).to(torch.bfloat16)
    stored_run.write_weights(tmp_path, dict(module.named_parameters()))
    found = weights_of(stored_run.open_run(tmp_path).module)
    for name, weight in module.named_parameters():
        assert found[name].dtype == torch.float32
        assert torch.equal(found[name], weight.float())


def test_what_is_missing_is_one_sentence(tmp_path, tokenizer):
    with pytest.raises(RegardError, match=r"is no run \(it has no run\.toml\)"):
        stored_run.open_run(tmp_path)
    save(tmp_path, "causal", [tokenizer])
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(RegardError, match=r"no model\.safetensors, which the end of training"):
        stored_run.open_run(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    stored_run.write_weights(tmp_path, dict((build(config_of("causal"))).named_parameters()))
    with pytest.raises(RegardError, match=r"tokenizer\.json cannot be read"):
        stored_run.open_run(tmp_path)


def test_weights_of_another_model_are_refused_with_all_that_does_not_fit(tmp_path, tokenizer):
    save(tmp_path, "causal", [tokenizer])
    stored_run.write_weights(
        tmp_path, dict((build(config_of("causal", width=8, tied=False))).named_parameters())
    )
    with pytest.raises(RegardError) as caught:
        stored_run.open_run(tmp_path)
    said = str(caught.value)
    assert "tensor head.project.weight is not of this model" in said
    assert "tensor embed.tokens.weight has shape (32, 8), not" in said


def test_weights_with_other_names_are_one_sentence(tmp_path, tokenizer):
    save(tmp_path, "causal", [tokenizer])
    weights = dict(build(config_of("causal")).named_parameters())
    stored_run.write_weights(tmp_path, {f"old.{name}": weight for name, weight in weights.items()})
    with pytest.raises(RegardError) as caught:
        stored_run.open_run(tmp_path)
    said = str(caught.value)
    assert "\n" not in said
    assert f"{len(weights)} tensors are missing, such as decoder" in said
    assert f"and {len(weights)} tensors are not of this model, such as old.decoder" in said
    assert "train it anew" in said


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path, tokenizer):
    (tmp_path / "file").write_text("")
    settings, config = replace(SETTINGS, model=ModelSettings("gpt2-tiny")), config_of("causal")
    with pytest.raises(RegardError, match="cannot write the run to"):
        stored_run.write_run(tmp_path / "file" / "run", settings, config, [tokenizer])
    with pytest.raises(RegardError, match="cannot write the weights to"):
        stored_run.write_weights(tmp_path / "not there", dict((build(config)).named_parameters()))
    strange = settings.changed({"data": {"train": ["\udcff.txt"]}}, "")
    with pytest.raises(RegardError, match="cannot write the run to"):
        stored_run.write_run(tmp_path / "run", strange, config, [tokenizer])
    assert not (tmp_path / "run" / "run.toml").exists()


# --- what is noted ---------------------------------------------------------------------------


def test_what_was_asked_for_stands_in_tables_of_its_own(tmp_path, tokenizer):
    asked = {
        "training": {"steps": 7},
        "data": {"train": ("a.txt", "b.txt")},
        "model": {"rotary_scaling": None, "preset": "gpt2-tiny"},
    }
    settings = replace(SETTINGS, model=ModelSettings("gpt2-tiny"))
    config = stored_run.config_for(settings.model, tokenizer, tokenizer)
    stored_run.write_run(tmp_path, settings, config, [tokenizer], asked=asked)
    text = (tmp_path / "run.toml").read_text(encoding="utf-8")
    assert "[asked.training]\nsteps = 7\n" in text
    found = recipes.beside(str(tmp_path))["asked"]
    assert found["data"]["train"] == ["a.txt", "b.txt"]
    assert found["model"] == {"rotary_scaling": False, "preset": "gpt2-tiny"}
    again = recipes.load(str(tmp_path))
    assert again.training.steps == settings.training.steps  # what counts is what was decided
    stored_run.write_run(tmp_path, settings, config, [tokenizer])
    assert "asked" not in recipes.beside(str(tmp_path))


def test_a_scaling_that_was_asked_for_is_written_as_a_table(tmp_path, tokenizer):
    asked = {"model": {"rotary_scaling": RotaryScaling("linear", 2.0)}}
    config = config_of("causal")
    settings = replace(SETTINGS, model=ModelSettings("gpt2-tiny"))
    stored_run.write_run(tmp_path, settings, config, [tokenizer], asked=asked)
    found = recipes.beside(str(tmp_path))["asked"]["model"]["rotary_scaling"]
    assert RotaryScaling(**found) == RotaryScaling("linear", 2.0)


def change(folder, *path: str, to: object) -> None:
    """Change one value in run.toml; None takes it away."""
    tables = tomllib.loads((folder / "run.toml").read_text(encoding="utf-8"))
    inner = tables
    for key in path[:-1]:
        inner = inner[key]
    inner.pop(path[-1], None)
    if to is not None:
        inner[path[-1]] = to
    (folder / "run.toml").write_text(tomli_w.dumps(tables), encoding="utf-8")


@pytest.mark.parametrize("which", ["tokenizer", "source_tokenizer"])
def test_another_tokenizer_of_the_same_size_is_refused_by_its_fingerprint(tmp_path, which):
    both = [learn("char", ["abcd"]), learn("char", ["efghij"])]
    save(tmp_path, "pairs", both)
    noted = recipes.beside(str(tmp_path))["versions"]
    assert noted["tokenizer"] == both[0].fingerprint
    assert noted["source_tokenizer"] == both[1].fingerprint
    learn("char", ["abce" if which == "tokenizer" else "efghik"]).save(tmp_path / f"{which}.json")
    for opening in (stored_run.open_run, stored_run.config_of):
        with pytest.raises(RegardError, match=rf"/{which}\.json is not the tokenizer that the run"):
            opening(tmp_path)
    change(tmp_path, "versions", which, to=None)  # a run from before it was noted
    stored_run.open_run(tmp_path)


def test_a_source_tokenizer_that_is_gone_is_missed(tmp_path, tokenizer):
    save(tmp_path, "pairs", [tokenizer, learn("char", ["efghij"])])
    (tmp_path / "source_tokenizer.json").unlink()
    with pytest.raises(RegardError, match=r"source_tokenizer\.json cannot be read"):
        stored_run.config_of(tmp_path)


@pytest.mark.parametrize(
    ("table", "key", "value"), [("model", "norm_epsilon", 1e-3), ("training", "context", 99)]
)
def test_settings_that_were_changed_are_refused(tmp_path, tokenizer, table, key, value):
    save(tmp_path, "causal", [tokenizer])
    change(tmp_path, table, key, to=value)  # which would fit the weights as well
    for opening in (stored_run.open_run, stored_run.config_of, stored_run.settings_of):
        with pytest.raises(RegardError, match=r"run\.toml is not what was written when the run"):
            opening(tmp_path)
    change(tmp_path, "versions", "settings", to=None)  # a run from before they were noted
    found = stored_run.open_run(tmp_path).settings
    assert found == recipes.load(str(tmp_path))
    assert found.tables()[table][key] == value


def test_settings_that_are_gone_are_refused(tmp_path, tokenizer):
    save(tmp_path, "causal", [tokenizer])
    (tmp_path / "run.toml").write_text("")
    with pytest.raises(RegardError, match=r"run\.toml is not what was written when the run"):
        stored_run.open_run(tmp_path)


def test_the_data_of_a_run_may_have_moved(tmp_path, tokenizer):
    save(tmp_path, "causal", [tokenizer])
    change(tmp_path, "data", "train", to=["elsewhere.txt"])
    assert stored_run.open_run(tmp_path).settings.data.train == ("elsewhere.txt",)
    change(tmp_path, "data", "held_out", to=0.5)
    with pytest.raises(RegardError, match="is not what was written"):
        stored_run.open_run(tmp_path)


def test_a_flipped_bit_in_the_weights_is_told(tmp_path, tokenizer):
    save(tmp_path, "causal", [tokenizer])
    whole = bytearray((tmp_path / "model.safetensors").read_bytes())
    whole[-1000] ^= 1  # the last bit of some number
    (tmp_path / "model.safetensors").write_bytes(whole)
    with pytest.raises(RegardError, match=r"damaged or cut off \(tensor .* not what was written"):
        stored_run.open_run(tmp_path)


def test_the_weights_are_the_models_own_and_not_the_files(tmp_path, tokenizer):
    save(tmp_path, "causal", [tokenizer])
    run = stored_run.open_run(tmp_path)
    before = weights_of(run.module)
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.truncate(100)  # would kill whoever maps it
    assert all(torch.equal(w, before[n]) for n, w in run.module.named_parameters())
    assert all(w.requires_grad for w in run.module.parameters())


# --- full disks ------------------------------------------------------------------------------


def full_at(monkeypatch, number: int) -> None:
    """Let the disk be full when for the `number`th time something must be on it."""
    real, calls = os.fsync, itertools.count()

    def sync(descriptor: int) -> None:
        if next(calls) == number:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", sync)


@pytest.mark.parametrize("number", range(8))
def test_a_full_disk_leaves_the_run_that_was_there(tmp_path, tokenizer, monkeypatch, number):
    both = [tokenizer, learn("char", ["efghij"])]
    module = save(tmp_path, "pairs", both)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    settings = replace(SETTINGS, model=ModelSettings("transformer-tiny"))
    other = [learn("char", [text]) for text in ("other", "letters")]
    config = stored_run.config_for(settings.model, *other)
    full_at(monkeypatch, number)
    said = rf"cannot write the run to {tmp_path}: no space left in {tmp_path}: about .* are needed"
    with pytest.raises(RegardError, match=said):
        stored_run.write_run(tmp_path, settings, config, other)
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    if number < 4:  # the three contents; then come their names, the settings' last
        assert found == files
        full_at(monkeypatch, 0)
        with pytest.raises(RegardError, match=r"cannot write the weights to .*: no space"):
            stored_run.write_weights(tmp_path, weights_of(build(config)))
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files
        assert stored_run.open_run(tmp_path).config == module.config
    else:
        assert found["run.toml"] == files["run.toml"]
        assert found.keys() == files.keys()


def test_what_a_killed_run_left_half_written_is_swept(tmp_path, tokenizer):
    module = save(tmp_path, "causal", [tokenizer])
    settings = replace(SETTINGS, model=ModelSettings("gpt2-tiny"))
    left = tmp_path / ".run.toml.00000000-1-abcdef12.partial"
    for write in (
        lambda: stored_run.write_run(tmp_path, settings, module.config, [tokenizer]),
        lambda: stored_run.write_weights(tmp_path, weights_of(module)),
    ):
        left.write_text("half")
        os.utime(left, (0, 0))
        write()
        assert not left.exists()


def test_weights_beyond_the_memory_are_told_before_they_are_read(tmp_path, tokenizer, monkeypatch):
    save(tmp_path, "causal", [tokenizer])
    monkeypatch.setattr(weights, "_memory", lambda device: 1000)
    monkeypatch.setattr(weights, "verified", lambda path: pytest.fail("it was read"))
    with pytest.raises(RegardError, match=r"its weights take .* kB of memory and cpu has 1\.0 kB"):
        stored_run.open_run(tmp_path)
