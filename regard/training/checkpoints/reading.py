"""What a run leaves on disk as it goes: folders `checkpoints/STEP`, there whole or not at all.

    model.safetensors       the weights (their running means, if there are any)
    optimizer.safetensors   what the optimizers remember, and all else that is a tensor
    place.json              where the run stood, and the settings and data it stands for

Each file carries a checksum for each of its tensors, `place.json` one of itself. Where processes
held shares of the tensors there are files for each, and `place.json` says which rows they hold; any
number of processes reads them back.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import RegardError, UnreadableError
from regard.storage import discard, read_json, sweep
from regard.storage.tensors import verify
from regard.training.checkpoints import FOLDER
from regard.training.distributed.sharding import Pieces, local

PLACE = "place.json"
KINDS = ("model", "optimizer")
FILE = re.compile(r"(model|optimizer)(-\d{5}-of-\d{5})?\.safetensors")
FORMAT = 1
STEP, DAMAGED = r"0|[1-9]\d{0,17}", ".damaged"


@dataclass(frozen=True)
class Place:
    """Where a run stands, as far as that is no tensor; randomness follows from seed and step."""

    step: int = 0  # steps that are done
    turn: int = 0  # which order of the data: it changes each time training steps back
    order: str = ""  # a digest of all examples so far, in order
    tokens: int = 0  # read so far
    seconds: float = 0.0  # trained so far
    best_loss: float = math.inf
    best_step: int = 0
    waited: int = 0  # validations without a new best
    due: bool = False  # whether this step's validation is still to come
    regular: bool = True  # else written because somebody asked to stop
    log: int = 0  # bytes of the log that belong to this place
    cuts: int = 0  # validations without a new best in all: a plateau's rate is cut behind each

    def table(self) -> dict[str, Any]:
        """What JSON can hold."""
        return {**asdict(self), "best_loss": _finite(self.best_loss)}

    @staticmethod
    def of(table: Mapping[str, Any]) -> "Place":
        """What `table` gave, checked."""
        values = {"cuts": 0, **table}  # nobody counted them before there was such a schedule
        if values.get("best_loss", 0) is None:
            values["best_loss"] = math.inf
        for field in fields(Place):
            value, kind = values.get(field.name), type(getattr(Place, field.name))
            fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
            if not fits or isinstance(value, bool) != (kind is bool):
                raise RegardError(f"its {field.name} is {value!r}")
        if values["step"] < 0 or values["log"] < 0:
            raise RegardError("it stands before the beginning")
        return Place(**{field.name: values[field.name] for field in fields(Place)})


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class NewerError(RegardError):
    """A checkpoint that a later version wrote, which is no damage."""


class Checkpoint:
    """A checkpoint on disk, read as far as one asks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        found = unsealed(path / PLACE)
        written = found.get("format")
        if isinstance(written, int) and written > FORMAT:
            raise NewerError(f"{path} was written by a newer version of regard; go on with that")
        try:
            if found["format"] != FORMAT:
                raise RegardError(f"its format is {found['format']!r}, which is not known here")
            self.place = Place.of(found["place"])
            self.about: dict[str, Any] = dict(found["about"])
            self.files = {kind: [_checked(name) for name in found["files"][kind]] for kind in KINDS}
            tables = found["rows"]
            if not isinstance(tables, dict):
                raise RegardError("it has no rows")
        except (KeyError, TypeError, ValueError, RegardError) as error:
            raise RegardError(f"{path / PLACE} is damaged: {error}") from None
        self.pieces = {
            kind: Pieces.of({path / name: tables.get(name, {}) for name in names})
            for kind, names in self.files.items()
        }

    def steps(self, otherwise: int) -> int:
        """How many steps the run was to have in all when it was written, if that is known."""
        settings = self.about.get("settings")
        training = settings.get("training") if isinstance(settings, Mapping) else None
        steps = training.get("steps") if isinstance(training, Mapping) else None
        return steps if isinstance(steps, int) else otherwise

    def verify(self) -> None:
        """Raise a RegardError that names the first tensor whose checksum is not its own."""
        for names in self.files.values():
            for name in names:
                verify(self.path / name)

    def names(self, kind: str) -> list[str]:
        return self.pieces[kind].names()

    def fill(self, kind: str, tensors: Mapping[str, Tensor]) -> None:
        """Copy what is stored into tensors, of shares their rows; every name must be there."""
        pieces = self.pieces[kind]
        for name, tensor in tensors.items():
            with torch.no_grad():
                local(tensor).copy_(pieces.like(name, tensor))

    def weights(self, like: Mapping[str, Tensor] | None = None) -> "Stored":
        """The weights by name, each read when asked for; of shares (`like`) this process's rows."""
        return Stored(self.pieces["model"], like or {})


class Stored(Mapping[str, Tensor]):
    """Tensors of a checkpoint by name."""

    def __init__(self, pieces: Pieces, like: Mapping[str, Tensor]) -> None:
        self.pieces, self.shapes = pieces, like

    def __getitem__(self, name: str) -> Tensor:
        if name in self.shapes:
            return self.pieces.like(name, self.shapes[name])
        return self.pieces.read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.pieces.names())

    def __len__(self) -> int:
        return len(self.pieces.names())


def _checked(name: Any) -> str:
    if not isinstance(name, str) or not FILE.fullmatch(name):
        raise RegardError(f"it names {name!r}, which is no file of a checkpoint")
    return name


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The same with a checksum of itself."""
    return {**content, "digest": _digest(content)}


def unsealed(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if content.pop("digest", None) != _digest(content):
        raise RegardError(f"{path} is damaged: its checksum is not its own")
    return content


def stored_steps(folder: Path) -> list[int]:
    """The steps of a run's checkpoints by their names, the oldest first."""
    if not (folder / FOLDER).is_dir():
        return []
    names = [path.name for path in (folder / FOLDER).iterdir() if path.is_dir()]
    return sorted(int(name) for name in names if re.fullmatch(STEP, name))


def damaged_steps(folder: Path) -> list[int]:
    """The steps of checkpoints that were put aside."""
    names = [path.name for path in (folder / FOLDER).glob(f"*{DAMAGED}")]
    steps = [name.removesuffix(DAMAGED) for name in names]
    return sorted(int(step) for step in steps if re.fullmatch(STEP, step))


def sound(folder: Path) -> tuple[list[Checkpoint], list[str]]:
    """A run's whole checkpoints, the oldest first, and a sentence about each that is damaged.

    A damaged one is put aside as `STEP.damaged`, so that nothing takes it for a checkpoint again.
    """
    sweep(folder / FOLDER)  # what was killed while it was written
    found: list[Checkpoint] = []
    damaged: dict[int, str] = {}
    for step in stored_steps(folder):
        path = folder / FOLDER / str(step)
        try:
            found.append(_whole(path, step))
        except NewerError:
            raise
        except UnreadableError as error:  # which is no damage, and so nothing is put aside yet
            raise RegardError(
                f"{error}; nothing was changed: make it readable and run the same command again, "
                f"or remove {path} to resume from the checkpoint before it"
            ) from None
        except RegardError as error:
            damaged[step] = str(error).replace("\n  -", ";")  # all that is wrong, in one line
    for step in damaged:
        _put_aside(folder / FOLDER / str(step))
    return found, [
        f"checkpoint {step} is damaged and was put aside: {why}" for step, why in damaged.items()
    ]


def _whole(path: Path, step: int) -> Checkpoint:
    """The checkpoint of a step, every byte of which is what was written."""
    found = Checkpoint(path)
    if found.place.step != step:
        raise RegardError(f"{path} says that it is of step {found.place.step}")
    found.verify()
    return found


def _put_aside(path: Path) -> None:
    aside = path.with_name(f"{path.name}{DAMAGED}")
    discard(aside)  # an older one, or a link, which stays out of it
    path.rename(aside)
