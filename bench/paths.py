"""Files on the way of two commands, the widest imports, and switches on the family of a model.

    python bench/paths.py [--json]

Entered: files of regard/ of which a function runs in the main thread, from `regard train TEXT` to
the end of the first optimizer step, and in `regard generate RUN x --max-tokens 1` (on the CPU, what
runs while a module is imported aside). Fan-out: files of ours that a file imports, anywhere in it.
Switches: outside models/, families/ and interchange/, every `isinstance` on a family's config or
module, every import of such a class, and every comparison of `.kind` with a kind of model.
"""

import argparse
import ast
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

import regard
from regard.cli import COMMANDS, main
from regard.models.config import TASKS, ModelConfig
from regard.models.registry import FAMILIES

PACKAGE = Path(regard.__file__).parent
EXEMPT = ("models", "families", "interchange")  # folders that may know which family they have
KINDS = {*TASKS}
TEXT = "the cat sat on the mat and the dog ran under it\n" * 400
STEPS = 2
WIDEST = 10  # files listed by fan-out


# What is entered


class Entered:
    """Files of ours whose functions were called; what an import calls is left out."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.functions: set[tuple[str, str]] = set()
        self._importing = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """A profile function, see `sys.setprofile`."""
        code = frame.f_code
        if code.co_name == "<module>":
            self._importing += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not self._importing and code.co_filename.startswith(f"{PACKAGE}/"):
            file = str(Path(code.co_filename).relative_to(PACKAGE))
            self.files.add(file)
            self.functions.add((file, code.co_qualname))


def entered(*words: str, start: Callable[[Callable[[], None]], Any] | None = None) -> Entered:
    """What a command enters; `start` is given a function that ends the count."""
    COMMANDS[words[0]].load()
    found = Entered()
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as said:
        handle = start(lambda: sys.setprofile(None)) if start else None
        sys.setprofile(found)
        try:
            main([*words])
        except SystemExit as left:
            if left.code:
                raise RuntimeError(said.getvalue()) from None
        finally:
            sys.setprofile(None)
            if handle:
                handle.remove()
    return found


def at_first_step(end: Callable[[], None]) -> Any:
    """Call `end` when an optimizer has stepped; in a step that is traced no arithmetic is done."""
    return register_optimizer_step_post_hook(
        lambda *_: None if is_in_torch_dispatch_mode() else end()
    )


@contextmanager
def small_text() -> Iterator[Path]:
    """A folder with a text, and a cache of its own."""
    before = os.environ.get("REGARD_CACHE")
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "text.txt").write_text(TEXT, encoding="utf-8")
        os.environ["REGARD_CACHE"] = f"{name}/cache"
        try:
            yield Path(name)
        finally:
            del os.environ["REGARD_CACHE"]
            if before is not None:
                os.environ["REGARD_CACHE"] = before


def commands(*more: str) -> dict[str, Entered]:
    """What `train` enters before the end of its first step, and `generate` in all."""
    with small_text() as folder:
        run = str(folder / "run")
        steps = ("--steps", str(STEPS), "--set", "training.device=cpu")
        words = ("train", str(folder / "text.txt"), "--out", run, *steps, *more)
        trained = entered(*words, start=at_first_step)
        continued = entered("generate", run, "x", "--max-tokens", "1", "--device", "cpu")
    return {"train to the first step": trained, "generate to the first token": continued}


# What is imported


def fan_out() -> dict[str, int]:
    """For each file, how many files of ours it imports, the most first."""
    counts = {name: len(imported(tree) - {name}) for name, tree in sources().items()}
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def imported(tree: ast.AST) -> set[str]:
    """The files of ours that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and _is_ours(node.module):
            found |= {_file(f"{node.module}.{alias.name}") for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {_file(alias.name) for alias in node.names if _is_ours(alias.name)}
    return found


def _is_ours(module: str) -> bool:
    return module.split(".")[0] == PACKAGE.name


def _file(dotted: str) -> str:
    """The file of a module, or of the one that has such a name in it."""
    parts = dotted.split(".")[1:]
    for inner in (parts, parts[:-1]):
        base = PACKAGE.joinpath(*inner)
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return str(path.relative_to(PACKAGE))
    raise ValueError(f"nothing of ours is called {dotted}")


@cache
def sources() -> dict[str, ast.Module]:
    """Each file of ours, parsed."""
    return {
        str(path.relative_to(PACKAGE)): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


# Switches on the family


@dataclass(frozen=True, order=True)
class Switch:
    """A place that looks which family of models it has."""

    file: str
    line: int
    sort: str  # isinstance, import or kind
    what: str  # the class, or the comparison


@cache
def _classes(module: str) -> frozenset[str]:
    """Names in a module of a family that stand for settings of models, or for modules."""
    parts = module.split(".")
    if parts[:2] != ["regard", "models"] or len(parts) < 4 or parts[2] not in FAMILIES:
        return frozenset()
    return frozenset(
        name
        for name, value in vars(import_module(module)).items()
        if isinstance(value, type)
        and issubclass(value, ModelConfig | nn.Module)
        and value.__module__.startswith(f"regard.models.{parts[2]}.")
    )


def switches() -> list[Switch]:
    """All places outside the families that look which family they have."""
    return sorted(
        Switch(name, line, sort, what)
        for name, tree in sources().items()
        if name.split(os.sep)[0] not in EXEMPT
        for line, sort, what in _switches_in(tree)
    )


def _switches_in(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    known: set[str] = set()  # by what names this file has classes of families
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if alias.name in _classes(node.module):
                    known.add(alias.asname or alias.name)
                    yield node.lineno, "import", alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) in ("isinstance", "issubclass"):
            if names := {_last(inner) for inner in ast.walk(node.args[1])} & known:
                yield node.lineno, "isinstance", " | ".join(sorted(names))
        elif isinstance(node, ast.Compare) and _compares_kind(node):
            yield node.lineno, "kind", ast.unparse(node)
        elif isinstance(node, ast.Match) and _last(node.subject) == "kind":
            yield node.lineno, "kind", f"match {ast.unparse(node.subject)}"


def _called(call: ast.Call) -> str:
    return _last(call.func) if len(call.args) == 2 else ""


def _last(node: ast.AST) -> str:
    """The name, or what stands after the last dot."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _compares_kind(node: ast.Compare) -> bool:
    """`config.kind == "decoder"`; the kind of a tokenizer or an optimizer has other words."""
    sides = (node.left, *node.comparators)
    if not any(isinstance(side, ast.Attribute) and side.attr == "kind" for side in sides):
        return False
    words = (inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant))
    return any(isinstance(word, str) and word in KINDS for word in words)


# What is printed


def report(*more: str) -> dict[str, Any]:
    """All of it, as JSON can hold it; `more` are options of `train`."""
    paths = commands(*more)
    return {
        "entered": {
            name: {"files": sorted(found.files), "functions": len(found.functions)}
            for name, found in paths.items()
        },
        "fan_out": fan_out(),
        "switches": [asdict(switch) for switch in switches()],
    }


def show(found: dict[str, Any], console: Console) -> None:
    table = Table("", "files", "functions", box=None, pad_edge=False)
    for name, one in found["entered"].items():
        table.add_row(name, f"{len(one['files'])}", f"{one['functions']}")
    widest = [*found["fan_out"].items()]
    table.add_row(f"largest fan-out: {widest[0][0]}", f"{widest[0][1]}")
    for sorts, what in ((("isinstance", "kind"), "switches on"), (("import",), "classes of")):
        places = [one for one in found["switches"] if one["sort"] in sorts]
        where = {one["file"] for one in places}
        table.add_row(f"{what} a family, outside it: {len(places)}", f"{len(where)}")
    console.print(table)
    console.print("\n[bold]files imported by a file[/bold]")
    for name, count in widest[:WIDEST]:
        console.print(f"{count:4}  {name}")
    console.print("\n[bold]switches on a family, and imports of its classes[/bold]")
    for one in found["switches"]:
        console.print(f"{one['file']}:{one['line']}  {one['sort']}  {one['what']}", markup=False)


def run(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args(arguments)
    found = report()
    if asked.json:
        print(json.dumps(found, indent=1))
    else:
        show(found, Console(highlight=False, soft_wrap=True))


if __name__ == "__main__":
    run()
