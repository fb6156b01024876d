"""Weights that somebody changed, with checksums made anew, cannot make an answer that is none."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_runs import TEXT, small_run

import regard
from regard.errors import RegardError
from regard.families.settings import ModelSettings, Settings
from regard.models.counting.estimate import estimate
from regard.models.counting.model import NGram, NGramConfig, tensors_of
from regard.models.counting.table import Table
from regard.runs.run_folder import WEIGHTS
from regard.runs.stored_run import config_for, open_run, write_run, write_weights
from regard.storage.tensors import write_safetensors
from regard.text.learning import learn
from regard.text.specials import BOS, EOS

Change = Callable[[dict[str, torch.Tensor]], object]
ORDER = 3


@pytest.fixture(scope="module")
def counted(tmp_path_factory) -> Path:
    """A trigram of characters."""
    folder = tmp_path_factory.mktemp("counted") / "run"
    tokenizer = learn("char", [TEXT])
    settings = Settings(model=ModelSettings("ngram", {"order": ORDER}))
    config = config_for(settings.model, tokenizer, tokenizer)
    assert isinstance(config, NGramConfig)
    ids = np.array([BOS, *tokenizer.encode(TEXT * 3).tolist(), EOS])
    table = estimate(ids, ORDER, config.vocabulary, BOS, config.rule)
    write_run(folder, settings, config, [tokenizer])
    write_weights(folder, tensors_of(table))
    return folder


@pytest.fixture(scope="module")
def neural(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("neural") / "run"
    small_run(folder)
    return folder


def changed(run: Path, folder: Path, change: Change) -> Path:
    """A copy of a run with other numbers, sealed as good ones are."""
    shutil.copytree(run, folder)
    tensors = loaded(folder)
    change(tensors)
    write_safetensors(tensors, folder / WEIGHTS)
    return folder


def loaded(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file that may be written over."""
    return {name: tensor.clone() for name, tensor in load_file(folder / WEIGHTS).items()}


def put(name: str, place: int, value: float) -> Change:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name].view(-1)[place] = value

    return change


TABLES: dict[str, tuple[Change, str]] = {
    "a key below all": (put("2.keys", 0, -1), "tensor 2.keys is not in order"),
    "a key beyond all contexts": (put("2.keys", -1, 1 << 40), "2.keys has n-grams of contexts"),
    "a key of the largest number": (put("3.keys", -1, (1 << 63) - 1), "3.keys has n-grams of"),
    "keys that are not sorted": (
        lambda found: found.update({"3.keys": found["3.keys"].flip(0)}),
        "tensor 3.keys is not in order",
    ),
    "a key twice": (
        lambda found: found["3.keys"].__setitem__(1, found["3.keys"][0]),
        "tensor 3.keys is not in order",
    ),
    "a probability above 1": (put("1.logprobs", 7, 3.0), "tensor 1.logprobs has NaN, or a number"),
    "no number": (put("3.logprobs", 0, math.nan), "tensor 3.logprobs has NaN"),
    "infinitely probable": (put("2.logprobs", -1, math.inf), "tensor 2.logprobs has NaN"),
    "a back-off that is no number": (put("2.backoffs", 0, math.nan), "tensor 2.backoffs has NaN"),
    "a back-off beyond all": (put("1.backoffs", 7, 1e30), "tensor 1.backoffs has NaN, or a"),
    "numbers of another kind": (
        lambda found: found.update({"1.logprobs": found["1.logprobs"].bfloat16()}),
        "tensor 1.logprobs holds BF16, not F32",
    ),
}


@pytest.mark.parametrize("what", TABLES)
def test_a_table_that_cannot_be_one_is_not_opened(what, counted, tmp_path):
    change, said = TABLES[what]
    with pytest.raises(RegardError) as caught:
        open_run(changed(counted, tmp_path / "run", change))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_is_looked_at_in_whatever_pieces_and_without_checksums_too(
    counted, tmp_path, monkeypatch
):
    monkeypatch.setattr("regard.storage.tensors.PIECE", 16)  # two keys
    folder = changed(counted, tmp_path / "run", lambda found: None)
    assert open_run(folder).module.table.order == ORDER
    tensors = loaded(folder)
    tensors["3.keys"][2] = tensors["3.keys"][1]  # the first of a piece
    save_file(tensors, folder / WEIGHTS)  # as other programs write them
    with pytest.raises(RegardError, match=r"tensor 3\.keys is not in order"):
        open_run(folder)


def test_what_cannot_be_may_have_the_logarithm_of_nothing(counted, tmp_path):
    def impossible(found: dict[str, torch.Tensor]) -> None:
        found["1.logprobs"][0] = found["2.backoffs"][0] = -math.inf
        found["2.logprobs"][0] = 3e-5  # 1, rounded

    assert open_run(changed(counted, tmp_path / "run", impossible)).module.table.order == ORDER


def test_back_offs_that_make_more_of_a_probability_than_1_are_found_where_they_are_used(
    counted, tmp_path
):
    def boosted(found: dict[str, torch.Tensor]) -> None:
        found["1.backoffs"].fill_(200.0)

    module = open_run(changed(counted, tmp_path / "run", boosted)).module
    assert isinstance(module, NGram)
    table: Table = module.table
    unseen = np.array([BOS, 7, 7, 7, 7])
    with pytest.raises(RegardError, match="a probability above 1, or none; its numbers are"):
        table.logprobs(unseen)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_weight_that_is_no_number_is_named(value, neural, tmp_path):
    name = "blocks.0.feed.up.weight"
    name = (
        next((n for n in load_file(neural / WEIGHTS) if n == name), None) or "embed.tokens.weight"
    )
    with pytest.raises(RegardError) as caught:
        open_run(changed(neural, tmp_path / "run", put(name, 5, value)))
    wanted = f"tensor {name} has numbers that are not finite; train it again, or put the file back"
    assert str(caught.value).endswith(wanted)


def test_a_weight_of_a_hugging_face_folder_that_is_no_number_is_named(neural, tmp_path):
    regard.save(regard.load(neural), tmp_path / "hf")
    tensors = loaded(tmp_path / "hf")
    name = sorted(tensors)[3]
    tensors[name].view(-1)[0] = math.nan
    write_safetensors(tensors, tmp_path / "hf" / WEIGHTS)
    with pytest.raises(RegardError, match="has numbers that are not finite; fetch it again") as no:
        regard.load(tmp_path / "hf")
    assert f"tensor {name} has" in str(no.value)
