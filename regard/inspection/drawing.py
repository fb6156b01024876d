"""Figures drawn to files by matplotlib as it comes: no configuration file changes them.

Matplotlib obeys a `matplotlibrc` of the current folder before any other, and there it may belong to
an archive that was just unpacked.
"""

import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import RegardError
from regard.storage import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = (".png", ".svg", ".pdf")
RC = "matplotlibrc"


def check_kind(path: Path) -> None:
    """Refuse a name that says no kind of picture, before anything is read."""
    if path.suffix.lower() not in KINDS:
        raise RegardError(f"cannot draw to {path}: its name must end in one of {', '.join(KINDS)}")


@contextmanager
def drawing(
    path: Path, size: tuple[float, float], style: Mapping[str, Any] | None = None, dpi: int = 150
) -> Iterator["Figure"]:
    """A figure of `size` inches to draw on, which is then written as its file's suffix says.

    A link in the file's place is replaced and not followed: most names are defaults that nobody
    typed, and a folder that came from somebody may have a link there.
    """
    with _undisturbed(style or {}):
        from matplotlib.figure import Figure  # a second to import, and only pictures need it

        figure = Figure(figsize=size, layout="constrained")
        yield figure
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _any_glyph(), replacing(path) as partial:
                figure.savefig(partial, dpi=dpi, format=path.suffix[1:].lower() or "png")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise RegardError(f"cannot draw to {path}: {reason}") from None


def svg(
    size: tuple[float, float], style: Mapping[str, Any], draw: Callable[["Figure"], None]
) -> str:
    """An SVG document of what `draw` does to a figure of `size` inches, on a transparent ground.

    Nothing is noted of when and how it was made, so with a `svg.hashsalt` in `style` it is the same
    to the letter each time.
    """
    with _undisturbed(style):
        from matplotlib.figure import Figure

        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        written, about = io.StringIO(), dict.fromkeys(("Creator", "Date", "Format", "Type"))
        with _any_glyph():
            figure.savefig(written, format="svg", transparent=True, metadata=about)
        return written.getvalue()


@contextmanager
def _any_glyph() -> Iterator[None]:
    """Letters that the font lacks are drawn as boxes, without a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        yield


@contextmanager
def _undisturbed(style: Mapping[str, Any]) -> Iterator[None]:
    """Draw with matplotlib's own settings and those of `style`."""
    if "matplotlib" not in sys.modules:
        _import_matplotlib()
    import matplotlib

    usual = matplotlib.rcParamsDefault.items()
    settings: Any = {key: value for key, value in usual if not key.startswith("backend")}
    with matplotlib.rc_context(settings | style):
        yield


def _import_matplotlib() -> None:
    """Import it as if there were no configuration file in the current folder.

    It looks for the file by this name while it is imported, and nothing else can turn that off.
    """
    exists = os.path.exists
    os.path.exists = lambda path: path != RC and exists(path)
    try:
        import matplotlib  # noqa: F401
    finally:
        os.path.exists = exists
