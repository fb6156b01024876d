"""Every benchmark runs from end to end at a tiny size, and prints what it is there for."""

import ast
import importlib.util
import json
import random
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

from regard.families.settings import Settings
from regard.runs.plan import plan
from regard.runs.train_run import train_run

BENCH = Path(__file__).parents[2] / "bench"
LIBRARIES = {"measure", "growing"}  # of the others
WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "one", "dog", "ran")


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def text(tmp_path, monkeypatch):
    """A text of 500 lines, in the folder that is the current one now."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    rng = random.Random(0)
    lines = [" ".join(rng.choices(WORDS, k=8)) for _ in range(500)]
    Path("text.txt").write_text("\n".join(lines) + "\n")
    return Path("text.txt")


@pytest.fixture
def ran(monkeypatch, capsys):
    """A function that runs a benchmark and gives what it prints."""
    monkeypatch.syspath_prepend(str(BENCH))

    def run(name, *options):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, options), "--tiny"])
        loaded(name).main()
        return capsys.readouterr().out

    return run


RUNS = {  # what is given beside --tiny, and what is then said
    "cost": ([], "train: 4 cases"),
    "counting": (["text.txt", "text.txt", "--order", 3], "in 64 chunks"),
    "decoding": (["--device", "cpu"], "times the time without the cache"),
    "int8": ([], "llama-tiny, 2 rows, ms"),
    "loop": (["text.txt"], "saving costs"),
    "prepare": (["text.txt", "--vocabulary", 300, "--times", 2], "2 times: "),
    "recurrent": (["text.txt"], "the whole loop"),
    "resume": (["text.txt"], "the other and broken, resumed"),
    "shakespeare": (["text.txt"], "regard, seed 0: best"),
    "transformer": ([], "by kernel"),
    "word2vec": (["text.txt", "--questions", "questions.txt"], "analogies"),
}


def test_all_benchmarks_are_run_here():
    found = {path.stem for path in BENCH.glob("*.py")}
    assert found == {*RUNS, *LIBRARIES, "paths", "translation"}


@pytest.mark.parametrize("name", RUNS)
def test_a_benchmark_runs_from_end_to_end(text, ran, name):
    Path("questions.txt").write_text(": all\nthe cat a dog\n")
    options, said = RUNS[name]
    printed = ran(name, *options)
    assert said in printed
    assert "nan" not in printed.replace("nan of lmplz", "")  # which is not raced here


def test_translation_is_measured_with_a_model_that_was_grown(text, ran):
    model = {"preset": "transformer-tiny", "width": 32, "heads": 2, "hidden": 64}
    model |= {"layers": 1, "encoder_layers": 1, "context": 32}
    tables = {
        "model": model,
        "data": {"train": ["reverse"], "examples": 100},
        "training": {"steps": 2, "tokens_per_step": 64, "sample_every": -1},
    }
    train_run(plan(Settings().changed(tables, "")), Path("run"), Console(quiet=True))
    Path("source").write_text("a b c\nc d\na\nb\n")
    printed = ran("translation", "run", "source", "--beam", 2)
    found = json.loads(printed.splitlines()[-1])
    assert found["regard float32"]["as regard"] == 1.0
    apart = re.findall(r"by (?:at most )?([\d.e-]+)", printed)
    assert len(apart) == 1 + ("transformers float32" in found)
    assert all(float(one) < 1e-4 for one in apart)


def test_preparing_a_corpus_is_measured_in_all_its_stages(text, monkeypatch):
    found = loaded("prepare").prepared([str(text)], 300, "cache")
    assert found["bytes"] == text.stat().st_size
    assert 0 < found["tokens"] < found["bytes"]
    assert all(found[stage] > 0 for stage in ("reading", "learning", "encoding"))


def test_the_paths_of_two_commands_are_files_that_are_entered_and_no_others(monkeypatch, capsys):
    paths = loaded("paths")
    usual = paths.commands
    monkeypatch.setattr(paths, "commands", lambda: usual("--model", "gpt2-tiny"))
    paths.run(["--json"])
    found = json.loads(capsys.readouterr().out)
    train, generate = (one["files"] for one in found["entered"].values())
    assert {"cli.py", "commands/train.py", "training/loop.py", "storage/event_log.py"} <= {*train}
    assert {"cli.py", "commands/generate.py", "loading.py"} <= {*generate}
    assert all((paths.PACKAGE / name).is_file() for name in (*train, *generate))
    # Imported by both and never called; entered only after the first step.
    assert not {"comparison/compare_runs.py", "interchange/arpa.py"} & {*train, *generate}
    assert "training/checkpoints/saving.py" not in generate
    assert found["fan_out"]["cli.py"] > found["fan_out"]["terminal.py"] == 0
    paths.show(found, paths.Console())
    assert re.search(rf"^train to the first step +{len(train)} ", capsys.readouterr().out, re.M)


def test_imports_inside_functions_and_of_names_in_modules_are_counted():
    paths = loaded("paths")
    tree = ast.parse(
        "import torch, regard.errors\n"
        "from regard.storage import size, read_file\n"
        "from regard.models import masks\n"
        "def later():\n    from regard.models.masks import whole_numbers\n"
    )
    assert paths.imported(tree) == {"errors.py", "storage/__init__.py", "models/masks.py"}


def test_switches_on_a_family_are_found_by_any_name_and_others_are_not():
    paths = loaded("paths")
    tree = ast.parse(
        "from torch.nn import Embedding\n"
        "from regard.models.transformer.config import TransformerConfig as T, Kind\n"
        "def f(config, settings):\n"
        "    from regard.models.counting.model import NGramConfig\n"
        "    a = isinstance(config, NGramConfig | T)\n"
        "    b = isinstance(config, Embedding)\n"
        "    c = config.kind in ('encoder', 'decoder') or settings.tokenizer.kind == 'char'\n"
        "    return 'captioner' != config.kind\n"
    )
    assert sorted(paths._switches_in(tree)) == [
        (2, "import", "TransformerConfig"),
        (4, "import", "NGramConfig"),
        (5, "isinstance", "NGramConfig | T"),
        (7, "kind", "config.kind in ('encoder', 'decoder')"),
        (8, "kind", "'captioner' != config.kind"),
    ]
