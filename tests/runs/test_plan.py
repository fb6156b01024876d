"""From settings to a plan: every "auto" decided, and what cannot be said in one sentence."""

import random
from dataclasses import replace

import pytest
import torch

from regard.data.feeds.pair_batches import PairBatches
from regard.data.feeds.stream import MaskedTextFeed, TextFeed
from regard.errors import RegardError
from regard.families.registry import family_of
from regard.families.settings import Settings
from regard.families.tasks.text import PLACES
from regard.models.construction import Prebuilt, build
from regard.runs.plan import device_for, plan
from regard.runs.stored_run import config_for
from regard.text.learning import learn, vocabulary_for
from regard.training.memory import micro_batch

WORDS = ("the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree", "and", "then", "it")
AUTO = {"auto", "", 0}


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def text(path, words: int, seed: int = 0) -> str:
    rng = random.Random(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(" ".join(rng.choices(WORDS, k=words)), encoding="utf-8")
    return str(path)


def settings(train: object, tables: dict | None = None, **model: object) -> Settings:
    usual = {"data": {"train": train}, "model": {"layers": 1, "width": 16, "heads": 2, **model}}
    named = {"preset": "gpt2-tiny", **usual["model"]}
    made = Settings().changed({**usual, "model": named}, "test")
    return made.changed(tables or {}, "test")


def parallel(folder, pairs: int = 60, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    sides = [[], []]
    for _ in range(pairs):
        words = rng.choices(WORDS, k=rng.randint(2, 8))
        sides[0].append(" ".join(words))
        sides[1].append(" ".join(reversed(words)).upper())
    for name, lines in zip(("source", "target"), sides, strict=True):
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [str(folder / "source"), str(folder / "target")]


def paired(files: list[str], tables: dict | None = None, **model: object) -> Settings:
    made = settings(files, {"data": {"pairs": True}}, preset="transformer-tiny", **model)
    return made.changed(tables or {}, "test")


def test_every_auto_is_decided(tmp_path):
    plain = Settings().changed({"data": {"train": [text(tmp_path / "a.txt", 3000)]}}, "")
    made = plan(plain)
    tables = made.settings.tables()
    open_ended = {
        *(
            ("training", key)
            for key in ("tokens_per_step", "context", "micro_batch_size", "device")
        ),
        *(("training", key) for key in ("precision", "compile", "validate_every")),
        *(("training", key) for key in ("checkpoint_every", "sample_every", "log_every")),
        *(("tokenizer", key) for key in ("kind", "vocabulary")),
        *(("optimizer", "learning_rate"), ("model", "preset")),
    }
    assert all(tables[table][key] not in AUTO for table, key in open_ended)
    assert tables["schedule"]["warmup"] == 50
    training = made.settings.training
    assert (training.validate_every, training.log_every) == (50, 5)
    assert (training.device, training.precision, training.compile) == ("cpu", "float32", "no")
    assert made.settings.model.preset == "regard-4"
    assert made.config == config_for(made.settings.model, made.tokenizers[0], made.tokenizers[0])
    assert isinstance(made.feed, TextFeed)
    step = made.feed.step(0)
    assert step.tokens.shape[1] == training.context == made.config.context
    assert step.rows == training.tokens_per_step // training.context
    assert 1 <= training.micro_batch_size <= step.rows
    assert plan(made.settings).settings == made.settings  # what was decided stays


def test_what_is_asked_for_is_kept(tmp_path):
    asked = {
        "training": {
            "micro_batch_size": 3,
            "tokens_per_step": 200,
            "context": 40,
            "validate_every": 7,
        },
        "optimizer": {"learning_rate": 0.5},
        "schedule": {"warmup": 9},
        "tokenizer": {"kind": "char"},
    }
    made = plan(settings([text(tmp_path / "a.txt", 2000)], asked))
    for table, values in asked.items():
        for key, value in values.items():
            assert getattr(getattr(made.settings, table), key) == value
    assert made.settings.training.checkpoint_every == 7
    assert made.feed.step(0).tokens.shape == (5, 40)
    assert made.config.context == 40


@pytest.mark.parametrize(
    ("kind", "characters", "wanted"),
    [
        ("bpe", 10, 512),
        ("bpe", 512 * 512, 512),
        ("bpe", 512 * 512 + 1, 1024),
        ("bpe", 1 << 21, 4096),
        ("bpe", 1 << 40, 32768),
        ("char", 1 << 40, 0),
        ("byte", 1 << 40, 0),
    ],
)
def test_a_vocabulary_grows_with_the_text(kind, characters, wanted):
    assert vocabulary_for(kind, characters) == wanted


@pytest.mark.parametrize("kind", ["bpe", "byte", "char", "word"])
def test_the_model_has_the_vocabulary_of_its_tokenizer(tmp_path, kind):
    made = plan(settings([text(tmp_path / "a.txt", 800)], {"tokenizer": {"kind": kind}}))
    assert made.tokenizers[0].kind == kind
    assert made.config.vocabulary == len(made.tokenizers[0])
    if kind == "byte":
        assert made.config.vocabulary == 261
    if kind == "bpe":
        assert 261 < made.config.vocabulary <= 512


def test_a_vocabulary_asked_for_is_the_most_there_is(tmp_path):
    asked = {"tokenizer": {"kind": "bpe", "vocabulary": 270}}
    made = plan(settings([text(tmp_path / "a.txt", 800)], asked))
    assert made.config.vocabulary == 270


@pytest.mark.parametrize("words", [30, 200, 1000])
def test_little_text_gets_short_rows_of_which_there_are_several(tmp_path, words):
    path = text(tmp_path / "a.txt", words)
    made = plan(settings([path], {"tokenizer": {"kind": "char"}}, context=512))
    context, tokens = made.settings.training.context, made.train_tokens
    assert context == made.config.context
    assert context == 16 or context * PLACES <= tokens
    assert context == 512 or 2 * context * PLACES > tokens


@pytest.mark.parametrize("content", ["x", "a short line", "one\ntwo\n"])
@pytest.mark.parametrize("name", ["gpt2-tiny", "bert-tiny"])
def test_a_single_short_line_can_be_planned_and_asked_for(tmp_path, content, name):
    (tmp_path / "a.txt").write_text(content)
    asked = {"data": {"held_out": 0.0}, "training": {"tokens_per_step": 32}}
    made = plan(settings([str(tmp_path / "a.txt")], asked, preset=name))
    batch = made.feed.step(3)
    assert batch.valid > 0
    assert torch.isfinite(made.objective.logits(build(made.config), batch)).all()
    assert made.valid_tokens == 0
    assert list(made.feed.held_out(4)) == []


@pytest.mark.parametrize(
    ("name", "objective", "feed"),
    [
        ("gpt2-tiny", "causal", TextFeed),
        ("llama-tiny", "causal", TextFeed),
        ("bert-tiny", "masked", MaskedTextFeed),
        ("regard-2-encoder", "masked", MaskedTextFeed),
    ],
)
def test_decoders_learn_what_follows_and_encoders_what_is_hidden(tmp_path, name, objective, feed):
    made = plan(settings([text(tmp_path / "a.txt", 500)], preset=name))
    assert made.objective.name == objective
    assert type(made.feed) is feed
    if feed is MaskedTextFeed:
        assert made.feed.vocabulary == len(made.tokenizers[0])


def test_pairs_are_learned_by_an_encoder_decoder(tmp_path):
    made = plan(paired(parallel(tmp_path)))
    assert made.objective.name == "sequence-to-sequence"
    assert isinstance(made.feed, PairBatches)
    assert len(made.tokenizers) == 1
    assert (made.config.vocabulary, made.config.source_vocabulary) == (len(made.tokenizers[0]), 0)
    assert made.settings.data.longest == made.config.context - 1
    assert len(made.feed.train) + len(made.feed.valid) == 60


@pytest.mark.parametrize("shared", [True, False])
def test_pairs_and_models_that_do_not_go_together_are_one_sentence_before_any_reading(
    tmp_path, shared
):
    wrong = paired(["not", "there"], {"tokenizer": {"shared": shared}})
    wrong = wrong.changed({"model": {"preset": "gpt2-tiny"}}, "")
    with pytest.raises(RegardError, match="learns from text, not from pairs"):
        plan(wrong)
    with pytest.raises(RegardError, match="learns from pairs, not from text"):
        plan(settings(["not there"], preset="t5-tiny"))


def test_a_wrong_model_is_one_sentence_before_any_reading():
    for changes, said in (
        ({"context": "long"}, "context must be a whole number"),
        ({"width": 15}, "2 heads do not divide width 15"),
        ({"preset": "gpt3"}, "no model is called 'gpt3'"),
        ({"head": "none", "preset": "bert-tiny"}, "answers nothing"),
    ):
        with pytest.raises(RegardError, match=said):
            plan(settings(["not there"], **changes))


def test_separate_vocabularies_are_learned_from_their_own_sides(tmp_path):
    files = parallel(tmp_path)
    made = plan(paired(files, {"tokenizer": {"shared": False, "kind": "char"}}))
    target, source = made.tokenizers
    assert (made.config.vocabulary, made.config.source_vocabulary) == (len(target), len(source))
    assert source.unknown(source.encode("the cat")) == 0
    assert target.unknown(target.encode("THE CAT")) == 0
    assert source.unknown(source.encode("THE CAT")) == 6  # not the blank
    batch = made.feed.step(0)
    assert batch.source.max() < len(source)
    assert torch.isfinite(made.objective.logits(build(made.config), batch)).all()


def test_a_built_in_task_is_pairs_of_characters():
    made = plan(settings(["reverse"], {"data": {"examples": 200}}, preset="transformer-tiny"))
    assert made.settings.data.pairs
    assert made.tokenizers[0].kind == "char"
    assert isinstance(made.feed, PairBatches)
    assert plan(made.settings).settings == made.settings


@pytest.mark.parametrize("pairs", [False, True])
def test_a_tokenizer_from_a_file_is_used_as_it_is(tmp_path, pairs):
    given = learn("char", ["abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"])
    given.save(tmp_path / "mine.json")
    asked = {"tokenizer": {"file": str(tmp_path / "mine.json")}}
    if pairs:
        made = plan(paired(parallel(tmp_path), asked))
    else:
        made = plan(settings([text(tmp_path / "a.txt", 300)], asked))
    assert [one.fingerprint for one in made.tokenizers] == [given.fingerprint]
    assert made.config.vocabulary == len(given)
    assert made.settings.tokenizer.kind == "char"
    with pytest.raises(RegardError, match=r"lost\.json cannot be read"):
        plan(made.settings.changed({"tokenizer": {"file": str(tmp_path / "lost.json")}}, ""))


def test_a_learned_tokenizer_is_kept_for_next_time(tmp_path, monkeypatch):
    wanted = settings([text(tmp_path / "a.txt", 500)])
    first = plan(wanted).tokenizers[0]
    monkeypatch.setattr(
        "regard.families.data.vocabularies.learn", None
    )  # it could not be learned again
    assert plan(wanted).tokenizers[0].fingerprint == first.fingerprint


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "file"))
    with pytest.raises(RegardError, match="set REGARD_CACHE to a folder with room"):
        plan(settings([text(tmp_path / "a.txt", 300)]))


def test_pairs_longer_than_asked_are_left_out_and_counted(tmp_path):
    files = parallel(tmp_path)
    made = plan(paired(files, {"data": {"longest": 20}, "tokenizer": {"kind": "char"}}, context=64))
    source, target = made.feed.train.lengths
    assert max(source.max(), target.max()) <= 20
    held = len(made.feed.valid)
    left_out = 60 - held - len(made.feed.train)
    assert left_out > 0
    sentence = f"{left_out} of {60 - held} pairs have a side of more than 20 tokens"
    assert any(sentence in warning for warning in made.warnings)


def test_what_is_held_out_fits_the_model_and_what_does_not_is_told(tmp_path):
    files = parallel(tmp_path)
    more = parallel(_folder(tmp_path / "valid"), 30, seed=1)
    asked = {"data": {"valid": more}, "tokenizer": {"kind": "char"}}
    made = plan(paired(files, asked, context=24, positions="learned"))
    held, module = len(made.feed.valid), build(made.config)
    assert 0 < held < 30
    for batch in made.feed.held_out(8):  # a learned table has no more places
        assert torch.isfinite(made.objective.logits(module, batch)).all()
    told = f"held out: {30 - held} of 30 pairs have a side of more than 23 tokens"
    assert any(told in warning for warning in made.warnings)


def _folder(path):
    path.mkdir()
    return path


def test_longest_may_be_the_context_and_not_more(tmp_path):
    files = parallel(tmp_path)
    asked = {"tokenizer": {"kind": "char"}}
    made = plan(paired(files, {**asked, "data": {"longest": 48}}, context=48, positions="learned"))
    module = build(made.config)
    widest = max((made.feed.step(step) for step in range(8)), key=lambda one: one.tokens.shape[1])
    assert torch.isfinite(made.objective.logits(module, widest)).all()
    with pytest.raises(
        RegardError, match="pairs of up to 49 tokens do not fit the model's context"
    ):
        plan(paired(files, {**asked, "data": {"longest": 49}}, context=48))
    with pytest.raises(RegardError, match="every pair was left out"):
        plan(paired(files, {**asked, "data": {"longest": 1}}))


def test_a_folder_of_code_is_many_documents(tmp_path):
    for number in range(25):
        text(tmp_path / "code" / f"deep{number % 3}" / f"file{number}.py", 60, seed=number)
    (tmp_path / "code" / "picture.png").write_bytes(b"\x89PNG\0\0")
    made = plan(settings([str(tmp_path / "code")]))
    assert "25 files" in made.data["text"]
    assert "whole documents" in made.data["split"]
    assert any("skipped" in warning for warning in made.warnings)
    assert made.train_tokens > 8 * made.valid_tokens / 2 > 0
    assert made.valid_bytes > 0


def test_a_held_out_file_is_taken_as_it_is(tmp_path):
    files = [text(tmp_path / "a.txt", 500), text(tmp_path / "b.txt", 90, seed=1)]
    made = plan(settings(files[:1], {"data": {"valid": files[1:]}}))
    assert made.valid_bytes == len((tmp_path / "b.txt").read_bytes())
    assert made.data["split"] == "held out: 1 named file"


def test_nothing_to_train_on_names_what_there_is():
    with pytest.raises(RegardError, match=r"nothing to train on; .*python.*reverse"):
        plan(Settings())


def test_devices_are_found_by_name():
    assert device_for("auto") == torch.device("cpu")
    assert device_for("cpu") == torch.device("cpu")
    with pytest.raises(RegardError, match="nothing is computed on a device 'gpu'"):
        device_for("gpu")


def test_rows_are_tried_on_the_widest_pairs(tmp_path, monkeypatch):
    made = plan(paired(parallel(tmp_path), {"training": {"tokens_per_step": 60}}))
    seen = []

    def fits(attempt, most, device):
        attempt(2)
        return most

    monkeypatch.setattr(micro_batch, "rows_that_fit", fits)
    objective, module = replace_logits(made.objective, seen), build(made.config)
    given = made.feed, made.settings, made.device, made.precision
    rows = micro_batch.tried_rows(module, objective, *given)
    steps = [made.feed.step(step) for step in range(20)]
    assert rows == max(step.rows for step in steps)
    widest = max(step.tokens.shape[1] + step.source.shape[1] for step in steps)
    assert seen[0].rows == 2
    assert seen[0].tokens.shape[1] + seen[0].source.shape[1] == widest


@pytest.mark.parametrize("tables", [{}, {"precision": "bf16-weights", "recompute": True}])
def test_a_module_that_was_tried_is_as_it_was_built(tmp_path, monkeypatch, tables):
    monkeypatch.setattr(micro_batch, "rows_that_fit", lambda attempt, most, device: attempt(1) or 1)
    given = settings([text(tmp_path / "a.txt", 2000)], {"training": tables})
    made = plan(given)
    built = Prebuilt(made.config, made.device, seed=3)
    module = built.module
    decided = made.settings, made.device, made.precision
    assert micro_batch.tried_rows(module, made.objective, made.feed, *decided) == 1
    assert replace(made, built=built).module() is module
    random = torch.get_rng_state()
    torch.manual_seed(3)
    twin = build(made.config)
    assert torch.equal(torch.get_rng_state(), random)
    for name, weight in twin.named_parameters():
        tried = module.get_parameter(name)
        assert tried.dtype == torch.float32
        assert tried.grad is None
        assert torch.equal(weight, tried)
    assert replace(made, built=built).module() is not module  # it is taken once
    assert not any("forward" in vars(part) for part in module.modules())


def replace_logits(objective, seen):
    class Watched:
        name, varied = objective.name, objective.varied

        def logits(self, module, batch, state=None):
            seen.append(batch)
            return objective.logits(module, batch, state)

    return Watched()


def test_the_plan_of_another_seed_has_another_order_of_the_same_text(tmp_path):
    wanted = settings([text(tmp_path / "a.txt", 2000)], {"training": {"tokens_per_step": 64}})
    one, two = plan(wanted), plan(wanted.changed({"training": {"seed": 1}}, ""))
    assert one.tokenizers[0].fingerprint == two.tokenizers[0].fingerprint
    assert not torch.equal(one.feed.step(0).tokens, two.feed.step(0).tokens)
    assert replace(two.settings.training, seed=0) == one.settings.training


@pytest.mark.parametrize("epochs", [0.5, 1.0, 2.5])
@pytest.mark.parametrize("of_pairs", [False, True])
def test_epochs_become_the_first_step_at_which_the_data_was_seen_so_often(
    tmp_path, epochs, of_pairs
):
    tables = {"training": {"epochs": epochs, "tokens_per_step": 64}}
    given = paired(parallel(tmp_path)) if of_pairs else settings(text(tmp_path / "a.txt", 3000))
    made = plan(given.changed(tables, "test"))
    steps = made.settings.training.steps
    assert made.feed.epoch(steps) >= epochs > made.feed.epoch(steps - 1)


def test_lines_are_texts_where_that_is_asked_or_usual(tmp_path):
    (tmp_path / "a.txt").write_text("the cat\n\nthe dog sat\n" * 50)
    given = settings(str(tmp_path / "a.txt"), {"data": {"held_out": 0.0}})
    assert plan(given).feed.train.stock.documents == 1
    assert plan(given.changed({"data": {"lines": "yes"}}, "test")).feed.train.stock.documents == 150
    counts = {"model": {"preset": "bigram"}, "data": {"train": [str(tmp_path / "a.txt")]}}
    made = plan(Settings().changed(counts, "test"))
    assert made.settings.data.lines == "yes"
    assert made.tokenizers[0].kind == "word"
    assert "\n" not in made.tokenizers[0].vocabulary.tokens
    counts["data"]["lines"] = "no"
    assert plan(Settings().changed(counts, "test")).feed.train.stock.documents == 1


def test_how_far_a_convolution_sees_is_told(tmp_path):
    far = {"preset": "conv", "width": 16, "kernel": 3, "growth": 2, "cycle": 0, "layers": 3}
    train = [text(tmp_path / "a.txt", 4000)]
    made = plan(Settings().changed({"data": {"train": train}, "model": far}, "test"))
    assert family_of(made.config).facts(made)["sees"] == "the last 15 tokens"
    tables = {
        "data": {"train": parallel(tmp_path), "pairs": True},
        "model": {**far, "preset": "conv-pairs", "encoder_layers": 2},
    }
    made = plan(Settings().changed(tables, "test"))
    assert (
        family_of(made.config).facts(made)["sees"]
        == "the last 15 tokens of a target, 7 around each one of a source"
    )
    assert not family_of((other := plan(settings(train))).config).facts(other)
