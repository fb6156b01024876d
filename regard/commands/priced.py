"""Which model `regard cost` is asked about: a name, a recipe, a run, or a Hugging Face folder."""

from pathlib import Path

from regard.errors import RegardError, nearest
from regard.interchange.huggingface import open_folder
from regard.loading import is_folder
from regard.models.families import OTHERS, Config, named
from regard.models.presets import DIALLED, PRESETS
from regard.training import recipes
from regard.training.runs import config_of, is_run
from regard.training.settings import Settings


def config_for(name: str) -> tuple[Config, Settings | None]:
    """The model that a name or a path stands for, and the settings it comes with, if any.

    A recipe's vocabulary is its data's; without data it is the preset's.
    """
    try:
        return named(name), None
    except RegardError:
        pass
    if name and is_folder(Path(name)):
        folder = Path(name)
        if is_run(folder):
            return config_of(folder), recipes.load(name)
        return open_folder(folder)[1], None
    if name in recipes.names() or name.endswith(".toml"):
        settings = recipes.load(name)
        if not settings.model.preset:
            raise RegardError(f"{name} leaves the model open; name one")
        return settings.model.config(), settings
    known = [*PRESETS, *DIALLED, *OTHERS, *recipes.names()]
    raise RegardError(f"no model, recipe or folder is called {name!r}; {nearest(name, known)}")
