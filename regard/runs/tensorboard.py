"""A run's curves and samples in TensorBoard."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.errors import RegardError
from regard.storage.event_log import Sink

TENSORBOARD = "tensorboard"  # in the run's folder
CURVES = {"step": "train", "validation": "validation"}  # an event's numbers, under this name
PLACE = ("event", "step", "time")


class TensorBoard(Sink):
    """Writes `train/*` and `validation/*` as curves, and samples and warnings as text."""

    def __init__(self, folder: str | Path, first: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # slow to import, and optional
        except ImportError as error:
            if (error.name or "").partition(".")[0] == "tensorboard":
                raise RegardError(
                    "TensorBoard is not installed; run: pip install tensorboard"
                ) from None
            raise RegardError(f"TensorBoard cannot be used: {error}") from None
        try:
            # What a run that goes on wrote behind its checkpoint is not shown.
            self._writer = SummaryWriter(str(folder), purge_step=first + 1 if first else None)
        except OSError as error:
            raise RegardError(f"cannot write to {folder}: {error.strerror}") from None

    def write(self, event: Mapping[str, Any]) -> None:
        kind, step = event["event"], event.get("step", 0)
        facts = {key: value for key, value in event.items() if key not in PLACE}
        if kind in CURVES:
            for key, value in facts.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    self._writer.add_scalar(f"{CURVES[kind]}/{key}", value, step)
        else:
            self._writer.add_text(kind, "\n\n".join(map(_shown, facts.items())), step)
        if kind != "step":
            self._writer.flush()  # else up to two minutes late

    def close(self) -> None:
        self._writer.close()


def _shown(fact: tuple[str, Any]) -> str:
    """A fact in Markdown, its text indented as code, so that none of it is taken as markup."""
    name, value = fact
    text = str(value).encode("utf-8", "backslashreplace").decode()  # half a surrogate pair
    return f"**{name}**\n\n" + "\n".join(f"    {line}" for line in text.splitlines() or [""])
