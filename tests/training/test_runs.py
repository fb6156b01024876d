"""A run's folder says all that made it, and opens again as it was."""

import tomllib
from dataclasses import fields, replace

import pytest
import torch
from tiny_jobs import config_of, weights_of

from regard.errors import RegardError
from regard.models.config import RotaryScaling, TransformerConfig
from regard.models.presets import PRESETS, preset
from regard.models.transformer import build
from regard.text.learning import learn
from regard.text.tokenizer import Tokenizer
from regard.training import recipes, runs
from regard.training.settings import ModelSettings, Settings

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


@pytest.mark.parametrize("name", [*PRESETS, "regard-4", "regard-8-encoder"])
def test_run_toml_as_a_recipe_gives_the_settings_again(tmp_path, tokenizer, name):
    settings = replace(SETTINGS, model=ModelSettings(name, {"dropout": 0.25}))
    config = runs.config_for(settings.model, tokenizer, tokenizer)
    runs.write_run(tmp_path, settings, config, [tokenizer])
    for path in (tmp_path, tmp_path / "run.toml"):
        again = recipes.load(str(path))
        assert replace(again, model=settings.model) == settings
        assert runs.config_for(again.model, tokenizer, tokenizer) == config
        assert runs.spelled_out(again.model, config) == again.model  # nothing is lost by twice
    assert config.dropout == 0.25
    assert config.vocabulary == len(tokenizer)


def test_a_scaling_is_kept_and_so_is_its_absence(tmp_path, tokenizer):
    assert preset("llama-3.2-1b").rotary_scaling == RotaryScaling(factor=32.0)
    for number, scaling in enumerate((None, RotaryScaling("linear", 2.0), RotaryScaling(high=9.0))):
        model = ModelSettings("llama-3.2-1b", {"rotary_scaling": scaling})
        config = runs.config_for(model, tokenizer, tokenizer)
        assert config.rotary_scaling == scaling
        runs.write_run(tmp_path / str(number), replace(SETTINGS, model=model), config, [tokenizer])
        again = recipes.load(str(tmp_path / str(number))).model
        assert runs.config_for(again, tokenizer, tokenizer).rotary_scaling == scaling


def test_run_toml_spells_out_every_setting_so_that_presets_may_change(tmp_path, tokenizer):
    model = ModelSettings("gpt2-tiny", {})
    config = runs.config_for(model, tokenizer, tokenizer)
    runs.write_run(tmp_path, replace(SETTINGS, model=model), config, [tokenizer])
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
    model = runs.spelled_out(ModelSettings("gpt2-tiny"), wanted)
    settings = replace(SETTINGS, model=model)
    config = runs.config_for(model, tokenizers[0], tokenizers[-1])
    module = build(config)
    runs.write_run(folder, settings, config, tokenizers)
    runs.write_weights(folder, dict(module.named_parameters()))
    return module


@pytest.mark.parametrize("kind", ["causal", "masked", "pairs"])
def test_a_run_opens_with_the_weights_and_tokenizer_it_was_written_with(tmp_path, tokenizer, kind):
    module = save(tmp_path, kind, [tokenizer])
    run = runs.open_run(tmp_path)
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
    run = runs.open_run(tmp_path)
    assert run.source_tokenizer.fingerprint == source.fingerprint != run.tokenizer.fingerprint
    assert run.config.source_vocabulary == len(source)
    assert run.config == module.config


def test_weights_in_bfloat16_are_written_as_float32_without_loss(tmp_path, tokenizer):
    save(tmp_path, "causal", [tokenizer])
    module = build(runs.open_run(tmp_path).config).to(torch.bfloat16)
    runs.write_weights(tmp_path, dict(module.named_parameters()))
    found = weights_of(runs.open_run(tmp_path).module)
    for name, weight in module.named_parameters():
        assert found[name].dtype == torch.float32
        assert torch.equal(found[name], weight.float())


def test_what_is_missing_is_one_sentence(tmp_path, tokenizer):
    with pytest.raises(RegardError, match=r"is no run \(it has no run\.toml\)"):
        runs.open_run(tmp_path)
    save(tmp_path, "causal", [tokenizer])
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(RegardError, match=r"no model\.safetensors yet: its training did not end"):
        runs.open_run(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    runs.write_weights(tmp_path, dict((build(config_of("causal"))).named_parameters()))
    with pytest.raises(RegardError, match=r"tokenizer\.json cannot be read"):
        runs.open_run(tmp_path)


def test_weights_of_another_model_are_refused_with_all_that_does_not_fit(tmp_path, tokenizer):
    save(tmp_path, "causal", [tokenizer])
    runs.write_weights(
        tmp_path, dict((build(config_of("causal", width=8, tied=False))).named_parameters())
    )
    with pytest.raises(RegardError) as caught:
        runs.open_run(tmp_path)
    said = str(caught.value)
    assert "tensor head.project.weight is not of this model" in said
    assert "tensor embed.tokens.weight has shape (32, 8), not" in said


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path, tokenizer):
    (tmp_path / "file").write_text("")
    settings, config = replace(SETTINGS, model=ModelSettings("gpt2-tiny")), config_of("causal")
    with pytest.raises(RegardError, match="cannot write the run to"):
        runs.write_run(tmp_path / "file" / "run", settings, config, [tokenizer])
    with pytest.raises(RegardError, match="cannot write the weights to"):
        runs.write_weights(tmp_path / "not there", dict((build(config)).named_parameters()))
    strange = settings.changed({"data": {"train": ["\udcff.txt"]}}, "")
    with pytest.raises(RegardError, match="cannot write the run to"):
        runs.write_run(tmp_path / "run", strange, config, [tokenizer])
    assert not (tmp_path / "run" / "run.toml").exists()


def test_versions_name_the_code_that_ran(monkeypatch):
    found = runs.versions()
    assert {"python", "torch", "regard", "tokenizers", "numpy"} <= set(found)
    monkeypatch.setenv("PATH", "")
    assert "git" not in runs.versions()
