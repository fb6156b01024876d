"""`regard.load` on a run: the very model that was trained, with its tokenizers."""

import shutil
from pathlib import Path

import pytest
import torch

import regard
from regard.cli import main
from regard.runs.stored_run import open_run

QUICK = ("training.tokens_per_step=256", "training.context=32", "training.sample_every=-1")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A folder with the runs `text`, `shared` and `separate`."""
    folder = tmp_path_factory.mktemp("loading")
    lines = [f"the {a} {b} the {c}" for a in "abcd" for b in "efgh" for c in "ijkl"]
    for name, texts in (("a", lines), ("b", [line[::-1] for line in lines])):
        (folder / name).write_text("\n".join(texts))
    pairs = ["--pairs", f"{folder}/a", f"{folder}/b", "--model", "marian-tiny"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        for name, arguments in (
            ("text", [f"{folder}/a", "--model", "gpt2-tiny"]),
            ("shared", pairs),
            ("separate", [*pairs, "--set", "tokenizer.shared=false"]),
        ):
            main(
                ["train", *arguments, "--steps", "2", "--out", f"{folder}/{name}", "--set", *QUICK]
            )
    return folder


@torch.inference_mode()
def logits_of(model: regard.Model) -> torch.Tensor:
    tokens = torch.arange(20)[None] % model.config.vocabulary
    if model.config.kind == "encoder-decoder":
        source = torch.arange(5)[None]
        return model.module(tokens, memory=model.module.encode(source))
    return model.module(tokens)


@pytest.mark.parametrize("name", ["text", "shared", "separate"])
def test_it_computes_what_the_run_computes_and_is_ready_to_use(runs, name):
    model, run = regard.load(runs / name), open_run(runs / name)
    assert not model.module.training
    assert model.config == run.config
    expected = logits_of(regard.Model(run.module))
    assert torch.equal(logits_of(model), expected)


def test_tokenizers_come_with_it(runs):
    text, shared, separate = (regard.load(str(runs / n)) for n in ("text", "shared", "separate"))
    assert text.tokenizer.decode(text.tokenizer.encode("the a")) == "the a"
    assert len(text.tokenizer) == text.config.vocabulary
    assert text.source_tokenizer is None
    assert shared.source_tokenizer is shared.tokenizer
    assert len(separate.source_tokenizer) == separate.config.source_vocabulary
    assert separate.source_tokenizer.fingerprint != separate.tokenizer.fingerprint


def test_a_type_may_be_asked_for_and_is_else_what_was_stored(runs):
    assert regard.load(runs / "text").module.embed.tokens.weight.dtype == torch.float32
    halved = regard.load(runs / "text", dtype=torch.bfloat16)
    assert {weight.dtype for weight in halved.module.parameters()} == {torch.bfloat16}
    with pytest.raises(regard.RegardError, match=r"cannot be loaded as torch\.int8"):
        regard.load(runs / "text", dtype=torch.int8)


def test_a_run_is_saved_as_a_hugging_face_folder_that_computes_the_same(runs, tmp_path):
    model = regard.load(runs / "text")
    regard.save(model, tmp_path / "folder")
    assert torch.allclose(logits_of(regard.load(tmp_path / "folder")), logits_of(model), atol=1e-6)


@pytest.mark.parametrize("missing", ["model.safetensors", "tokenizer.json"])
def test_a_run_that_lacks_a_part_is_told_in_one_sentence(runs, tmp_path, missing):
    shutil.copytree(runs / "text", tmp_path / "run")
    (tmp_path / "run" / missing).unlink()
    with pytest.raises(regard.RegardError, match=missing):
        regard.load(tmp_path / "run")


def test_weights_of_another_model_are_told_apart(runs, tmp_path):
    shutil.copytree(runs / "text", tmp_path / "run")
    shutil.copy(runs / "shared" / "model.safetensors", tmp_path / "run")
    with pytest.raises(regard.RegardError, match="not of this model"):
        regard.load(tmp_path / "run")


def test_what_is_no_folder_is_told_in_one_sentence():
    with pytest.raises(regard.RegardError, match="is not a folder"):
        regard.load("nowhere")
