"""Figures as files, there whole or not at all."""

import warnings
from pathlib import Path
from typing import Any

from regard.errors import RegardError
from regard.storage import replacing


def save_figure(figure: Any, path: Path, dpi: int) -> None:
    """Write a figure of matplotlib's to a file of the kind its suffix says.

    A link in the file's place is replaced: most names are defaults that nobody typed, and a folder
    that came from somebody may have a link there to what is not to be drawn over.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings(), replacing(path) as partial:
            warnings.filterwarnings("ignore", "Glyph")  # what the font lacks is drawn as a box
            figure.savefig(partial, dpi=dpi, format=path.suffix[1:].lower() or "png")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RegardError(f"cannot draw to {path}: {reason}") from None
