"""Benchmarks still fit the code that they measure."""

import ast
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", sorted(path.stem for path in BENCH.glob("*.py")))
def test_a_benchmark_can_be_imported(monkeypatch, name):
    monkeypatch.syspath_prepend(str(BENCH))
    assert loaded(name).__doc__


def test_preparing_a_corpus_is_measured_in_all_its_stages(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {number} of a small text\n" for number in range(500)))
    found = loaded("prepare").prepared([str(text)], 300, str(tmp_path / "cache"))
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
    assert {"cli.py", "commands/train.py", "training/loop.py"} <= {*train}
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
