"""What `regard train` is about: a new run, the rest of one that was begun, or nothing more."""

import glob
import json
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from regard.data.progress import Progress
from regard.errors import RegardError, UnreadableError
from regard.families.plan import Plan
from regard.families.settings import Settings
from regard.runs import stored_run
from regard.runs.plan import plan
from regard.runs.resuming import DATA, Begun, agreed, begun, flat
from regard.runs.run_folder import (
    CHECKPOINTS,
    RUN,
    check_links,
    check_place,
    check_spelling,
)
from regard.runs.status import state
from regard.runs.stored_run import is_ours
from regard.storage import lock
from regard.storage.lock import LOCK
from regard.text.tokenizer import Tokenizer
from regard.training.distributed.processes import Processes

OWN = (
    *DATA,
    "training.micro_batch_size",
)  # where data lies, and what fits, may differ between machines
TOKENIZERS = re.compile(r"(source_)?tokenizer\.json")
UNFINISHED = re.compile(r"\..+\.(partial|aside)")


def resume_or_new(
    settings: Settings,
    out: str,
    stages: Progress,
    processes: Processes,
    dry: bool,
    known: Sequence[Tokenizer] = (),
    named: Collection[str] = (),
) -> tuple[Plan | None, Path]:
    """The plan of a new run or of the rest of one, and its folder; no plan if all is done.

    A new run named by `out` takes the tokenizers that are `known`, if there are any. `named`:
    settings that were given, though their values may be the usual ones.
    """
    if out:
        folder = Path(out)
        check_spelling(folder)
        run = begun(folder)
        processes.agreement(str(run is None), f"files in {folder}")
        if run is None and not dry:
            check_free(folder)
        if run is None:
            return shared_plan(settings, stages, processes, known), folder
        if not dry:
            lock.check_free(folder)
            check_links(folder)
        settings = agreed(run, settings, named)
        if processes.any(is_finished(run, settings)):
            return None, folder
        return shared_plan(settings, stages, processes, stored_run.tokenizers_of(folder)), folder
    made = shared_plan(settings, stages, processes)
    last, free = named_after(made, streamed=_is_stream(settings))
    folder = Path(processes.said(str(last if _goes_on(last, made, settings) else free)))
    if folder == free:
        return made, folder
    run = begun(folder)
    processes.agreement(str(run is None), f"files in {folder}")
    assert run is not None
    known = stored_run.tokenizers_of(folder)
    return shared_plan(agreed(run, settings, named), stages, processes, known), folder


def shared_plan(
    settings: Settings,
    stages: Progress,
    processes: Processes,
    known: Sequence[Tokenizer] = (),
) -> Plan:
    """The same plan in all processes; the first of each machine prepares the data for the rest."""
    if processes.count == 1:
        return plan(settings, stages, known)
    made = plan(settings, stages, known) if processes.local == 0 else None
    processes.barrier()
    made = made or plan(settings, stages, known)
    tables = json.loads(processes.said(json.dumps(made.settings.tables())))
    names = [tokenizer.fingerprint for tokenizer in made.tokenizers]
    processes.agreement(json.dumps([made.digest, names]), "data")
    here = {key: value for key, value in flat(made.settings.tables()).items() if key not in OWN}
    processes.agreement(json.dumps([here, made.precision, made.compiled]))
    return replace(made, settings=Settings().changed(tables, "process 0"))


def _is_stream(settings: Settings) -> bool:
    return any(Path(name).parent.name == "streams" for name in settings.data.train)


def _goes_on(folder: Path | None, made: Plan, settings: Settings) -> bool:
    """Whether the same command without --out left a run there that is not at its end."""
    try:
        run = begun(folder) if folder else None
        if run is None or lock.holder(run.folder):
            return False
        check_links(run.folder)
        stored_run.check_data(run.folder, made.digest)
        agreed(run, settings)
    except UnreadableError as error:  # it may be this one
        raise RegardError(f"{error}; make it readable, or name a new folder by --out") from None
    except RegardError:  # it is damaged, or another run
        return False
    return not _has_ended(run)  # more steps for that one are asked for by its name


def is_finished(run: Begun, settings: Settings) -> bool:
    """Whether there is nothing left to do."""
    return _has_ended(run) and settings.training.steps == run.settings.training.steps


def _has_ended(run: Begun) -> bool:
    return state(run.folder).word in ("finished", "stopped early")


def check_free(folder: Path) -> None:
    """Refuse a folder with anything of somebody else's in it, before minutes of reading."""
    lock.check_free(folder)
    check_links(folder)
    if not _is_taken(folder) or is_ours(folder):
        check_place(folder)
    elif os.path.isfile(folder / RUN):
        raise RegardError(
            f"{folder / RUN} is not what training wrote, and would be lost; choose another --out"
        )
    elif (folder / CHECKPOINTS).is_dir():
        raise RegardError(
            f"{folder} is a run without its run.toml; put that back, or choose another --out"
        )
    elif not folder.exists():
        raise RegardError(
            f"{folder} is a link to {os.readlink(folder)}, which is not there; make that folder, "
            "or choose another --out"
        )
    else:
        raise RegardError(f"{folder} is already there; choose another --out")


def _is_taken(folder: Path) -> bool:
    return os.path.lexists(folder) and not (folder.is_dir() and _is_left(folder))


def _is_left(folder: Path) -> bool:
    """Whether a folder holds nothing, or what a run left that was killed before its run.toml."""
    names = {path.name for path in folder.iterdir() if not UNFINISHED.fullmatch(path.name)}
    return not names or (LOCK in names and all(map(TOKENIZERS.fullmatch, names - {LOCK})))


def named_after(made: Plan, streamed: bool = False) -> tuple[Path | None, Path]:
    """The last folder in runs/ named after the data, if any, and the next one, not there yet."""
    data = made.settings.data
    stems = [_stem(Path(given)) for given in data.train[: 2 if data.pairs else 1]]
    name = "stdin" if streamed else "-".join(dict.fromkeys(stems))
    last, folder, number = None, Path("runs") / name, 1
    while os.path.lexists(folder):  # a link that leads nowhere is somebody's too
        number += 1
        last, folder = folder, Path("runs") / f"{name}-{number}"
    return last, folder


def _stem(path: Path) -> str:
    """What a file or folder is about; of a pattern, the folder it stands in."""
    while glob.has_magic(path.name):
        path = path.parent
    return path.name.lstrip(".").split(".")[0] or "run"
