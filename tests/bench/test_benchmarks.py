"""Benchmarks still fit the code that they measure."""

import importlib.util
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
