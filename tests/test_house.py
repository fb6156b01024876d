"""The rule of the house: only a family's own places know which family a model is of."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("bench_paths", ROOT / "bench" / "paths.py")
paths = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = paths
_spec.loader.exec_module(paths)

# Files that import classes of a family, and which. This list may only become shorter.
OFFENDERS = {  # parts of models that several families have, and one name for users of Python
    "__init__.py": {"TransformerConfig"},
    "costs/trace/tracer.py": {"Attend"},
    "training/distributed/processes.py": {"Attention", "Block"},
    "training/job.py": {"Block"},
}
MOST_KINDS = 10  # comparisons of a model's `.kind`, each with its reason


def test_outside_the_families_nothing_imports_their_classes():
    found: dict[str, set[str]] = {}
    for switch in paths.switches():
        if switch.sort == "import":
            found.setdefault(switch.file, set()).add(switch.what)
    assert found == OFFENDERS  # whoever removed an import takes it out of the list too


def test_outside_the_families_the_kind_of_a_model_is_asked_seldom_and_with_a_reason():
    kinds = [switch for switch in paths.switches() if switch.sort == "kind"]
    assert len(kinds) <= MOST_KINDS
    for switch in kinds:
        lines = (paths.PACKAGE / switch.file).read_text(encoding="utf-8").splitlines()
        above, line = lines[switch.line - 2 : switch.line]
        assert "#" in line or above.lstrip().startswith("#"), f"{switch.file}:{switch.line}"
