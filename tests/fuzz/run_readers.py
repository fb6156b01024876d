"""Readers of what people and runs write down: settings, checkpoints, caches, figures, logs."""

import fcntl
import json
import shutil
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import good
import numpy as np
import patching
import tomli_w
import torch
import tyro
from patching import Reader, or_refusal, patched, put

import regard
from regard import cli
from regard.commands import runs as runs_command
from regard.comparison import compare_runs, measuring, request, results
from regard.comparison.report import page
from regard.costs.device.ceilings import device_named
from regard.costs.predict import predicted
from regard.data.token_files import Stock, Tokens
from regard.families.settings import Settings
from regard.inspection import curves, through_time
from regard.runs import recipes, resuming, status, stored_run
from regard.storage import event_log, lock
from regard.training.checkpoints.reading import KINDS, Checkpoint, sealed, sound

WEIGHTS = "model.safetensors"

# Settings


def recipe(data: bytes, folder: Path) -> None:
    path = str(put(folder / "recipe.toml", data))
    settings = recipes.load(path)
    recipes.about(path)
    resuming.flat(resuming.asked(settings))
    if settings.model.preset:
        settings.model.config()


def run_settings(data: bytes, folder: Path, old: bool = False) -> None:
    """A run.toml whose checksum fits, or one of before there were any; then its run."""
    tables = patched(good.tables(), data)
    if isinstance(tables, dict) and isinstance(tables.get("versions"), dict):
        tables["versions"] = {**tables["versions"], "settings": stored_run._digest(tables)}
        if old:
            del tables["versions"]["settings"]
    spelled = toml(tables)
    if spelled is None:
        return
    path = good.fresh("settings", good.run())
    (path / "run.toml").write_bytes(spelled.encode("utf-8", "replace"))
    listed(status.state(path))
    resuming.begun(path)
    stored_run.open_run(path)


def toml(tables: Any) -> str | None:
    """The same as TOML, if that can hold it."""
    try:
        return tomli_w.dumps(tables)
    except (TypeError, AttributeError, ValueError):
        return None


def old_settings(data: bytes, folder: Path) -> None:
    run_settings(data, folder, old=True)


def overrides(data: bytes, folder: Path) -> None:
    changes = data.decode("utf-8", "surrogateescape").split("\n")
    recipes.override(Settings(), changes).model.config()


def command_line(data: bytes, folder: Path) -> None:
    """A command's words are parsed, and its sizes; nothing is run."""
    name, *words = data.decode("utf-8", "surrogateescape").split("\n")
    if name in cli.COMMANDS:
        settings = (tyro.conf.FlagCreatePairsOff,)
        command, registry = cli.COMMANDS[name].load(), cli._registry()
        with suppress(SystemExit):
            tyro.cli(command, prog=name, args=words, config=settings, registry=registry)
    elif name == "parameters":
        request._number("\n".join(words))


# What runs and caches keep


def checkpoint(data: bytes, folder: Path) -> None:
    """A place.json with changes, and with the checksum that belongs to it."""
    content = patched(good.place(), data)
    put_checkpoint(sealed(content) if isinstance(content, dict) else content, folder)


def place(data: bytes, folder: Path) -> None:
    put_checkpoint(data, folder)


def put_checkpoint(content: Any, folder: Path) -> None:
    run = folder / "begun"
    shutil.rmtree(run, ignore_errors=True)
    path = put(run / "checkpoints" / "4" / "place.json", content).parent
    for kind in KINDS:
        put(
            path / f"{kind}.safetensors", good.stored(json.dumps(good.header()).encode(), bytes(24))
        )
    or_refusal(lambda: gone_on(Checkpoint(path)))
    found, sentences = sound(run)
    patching.REFUSALS.extend(map(regard.RegardError, sentences))
    resuming.to_go_on_from(found, run, average=True)


def gone_on(stored: Checkpoint) -> None:
    stored.verify()
    stored.fill("model", {"a": torch.zeros(2, 2), "b": torch.zeros(1, dtype=torch.int64)})
    dict(stored.weights())
    stored.steps(3)
    stored.place.table()
    resuming.check_place(stored, good.place()["about"])


def locked(data: bytes, folder: Path) -> None:
    """The signature in a lock that somebody holds."""
    path = put(folder / "held" / lock.LOCK, data)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert lock.holder(path.parent) is not None
        lock.check_free(path.parent)


def cache(kind: str) -> Reader:
    """Prepared tokens: their notes with changes and a checksum, or any notes, or other numbers."""

    def read(data: bytes, folder: Path) -> None:
        path = good.fresh("prepared", good.prepared()) / "train"
        notes = json.loads((path / "meta.json").read_text())
        if kind == "notes":
            put(path / "meta.json", remade(patched(notes, data)))
        elif kind == "numbers":
            for name in sorted(set(notes["checksums"]) - {""}):
                raw = (path / name).read_bytes()
                put(path / name, data[: len(raw)] + raw[len(data) :])
                data = data[len(raw) :]
                notes["checksums"][name] = good_hash((path / name).read_bytes())
            put(path / "meta.json", remade(notes))
        else:
            put(path / "meta.json", data)
        look_into(Tokens(path))

    return read


def good_hash(content: bytes) -> str:
    from regard.data.token_files import _hash

    return _hash(content).hexdigest()


def remade(notes: Any) -> Any:
    try:
        stock = Stock(**notes)
        return notes | {"checksums": {**stock.checksums, "": stock.seal()}}
    except (TypeError, ValueError, AttributeError):
        return notes


def look_into(found: Tokens) -> None:
    ids = found.read(0, len(found))
    assert len(ids) == len(found)
    assert ids.max(initial=0) < found.stock.vocabulary
    places = np.arange(min(len(found), 3))
    found.rows(places, 4, 0)
    found.documents(0, len(found))


def device(data: bytes, folder: Path) -> None:
    """A calibration with changes, and a job predicted by it."""
    path = put(folder / "device.json", patched(good.device(), data))
    predicted(good.job(), device_named(str(path)), "write")


def figures(data: bytes, folder: Path) -> None:
    """What a comparison kept of its measurements, and of its decisions; then its report."""
    content = patched({"figures": good.FIGURES, "models": {"a": {"asked": {}}}}, data)
    if not isinstance(content, dict) or not isinstance(content.get("figures"), dict):
        return
    path = put(folder / "compare.json", content)
    or_refusal(lambda: [resuming.flat(m.get("asked", {})) for m in decided(path).values()])
    found = {}
    for kind in good.FIGURES:
        values = content["figures"].get(kind)
        found[kind] = measuring.known(
            put(folder / f"{kind}.json", {"key": "1", "figures": values}), "1"
        )
    if None in found.values():
        return
    base = results.Result("a", "gpt2-tiny", "", 10, "")
    training = {0: {"steps": 1, "tokens": 2, "tokens_per_second": 1.0, "seconds": 1.0, "curve": []}}
    each = {name: found[name] for name in measuring.FOR_EACH_SEED}
    once = {name: found[name] for name in measuring.FOR_ONE}
    result = results.result(base, training, {0: each}, once, found["memory"])
    buckets = results.buckets_of(each["quality"], each["lengths"])
    given = tuple(once["samples"]["given"])
    compared = results.Comparison("", False, {}, (result,), given, (), buckets)
    json.dumps(compared.figures())
    page.page(compared)


def decided(path: Path) -> dict[str, Any]:
    return compare_runs.models_in(path)


# Logs


def events(data: bytes, folder: Path) -> None:
    """A run's log, by all that read it."""
    run = folder / "logged"
    path = put(run / "log.jsonl", data)
    put(run / "run.toml", (good.run() / "run.toml").read_bytes())
    listed(status.state(run))
    for by in ("step", "tokens", "time"):
        or_refusal(drawn, run, by)
    for work in (measuring.trained, measuring.evaluated, lambda run: through_time._reach(run, "a")):
        or_refusal(work, run)
    event_log.Log(run).close()  # it mends the end
    or_refusal(event_log.read, path)
    if zlib.crc32(data) % 64 == 0:  # 0.3 s
        curves.plot([run], folder / "curves.svg")


def statuses(data: bytes, folder: Path) -> None:
    """A run's status.json; whatever it holds, the log decides."""
    run = folder / "noted"
    put(run / "run.toml", (good.run() / "run.toml").read_bytes())
    put(run / "log.jsonl", b'{"event": "start"}\n{"event": "step", "step": 3}\n')
    put(run / "status.json", data)
    found = status.state(run)
    assert (found.word, found.step) == ("killed", 3)
    listed(found)


def listed(state: status.RunState) -> None:
    """A run as `regard runs` shows it, and as JSON."""
    json.dumps(runs_command._figures(state), allow_nan=False)
    runs_command._row(state, 1e9)
    runs_command._trouble(state)


def drawn(run: Path, by: Any) -> None:
    found = curves._run(run, "a", by)
    curves.limits([found])
    curves._label(found)
    curves._corner_is_free([found])
    curves._axis([found], by)
