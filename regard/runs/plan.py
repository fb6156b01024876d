"""From settings to a run that is ready to start: data read, and everything left open decided."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from regard.data.builtin import tasks
from regard.data.progress import Progress
from regard.data.readers.files import expanded
from regard.errors import RegardError
from regard.families.data.images import SCENES
from regard.families.plan import Plan
from regard.families.registry import family_of
from regard.families.settings import Settings
from regard.models.config import Form
from regard.models.construction import usable
from regard.text.tokenizer import Tokenizer
from regard.training.objectives import objective_for
from regard.training.settings import DataSettings

USUAL: dict[Form, tuple[str, str]] = {  # models, on a CPU and on a GPU
    "text": ("regard-4", "regard-8"),
    "pairs": ("transformer-tiny", "transformer-tiny"),
    "images": ("captioner", "captioner"),
}
BUILT_IN = ("python", *tasks.TASKS, SCENES)


def plan(
    settings: Settings, progress: Progress | None = None, known: Sequence[Tokenizer] = ()
) -> Plan:
    """Read the data and decide everything that was left open.

    `known` are the tokenizers of a run that goes on: the target's, then a separate source's.
    """
    if not settings.data.train:
        raise RegardError(
            "there is nothing to train on; give files or folders, --pairs SOURCE TARGET, or one of "
            f"{', '.join(BUILT_IN)}"
        )
    vectors = settings.training.vectors
    if vectors and not expanded(vectors).exists():
        raise RegardError(f"training.vectors is {vectors!r}, which is not there")
    device = device_for(settings.training.device)
    settings = _machine_defaults(settings, device)
    config = settings.model.config()
    family, form = family_of(config), settings.data.form
    device = family.device(device)
    objective_for(config, form)  # or say so before reading all
    prepared = family.work(config).read(settings, progress or Progress(), known)
    return family.resolve(prepared, device)


def _machine_defaults(settings: Settings, device: torch.device) -> Settings:
    """The settings with sizes that train in minutes on the machine."""
    data, gpu = _formed(settings.data), device.type == "cuda"
    model, training, named = settings.model, settings.training, bool(settings.model.preset)
    if not named:
        model = replace(model, preset=USUAL[data.form][gpu])
    settings, config = replace(settings, data=data, model=model), model.config()
    family = family_of(config)
    family.check(settings, config)
    tokens, context = family.sizes(settings, config, gpu, named)
    training = replace(
        training,
        tokens_per_step=training.tokens_per_step or tokens,
        context=training.context or context,
    )
    return replace(settings, training=training)


def _formed(data: DataSettings) -> DataSettings:
    """The same with what built-in data is."""
    if data.pairs and data.images:
        raise RegardError("data is pairs or images, not both; leave out data.pairs or data.images")
    if len(data.train) != 1:
        return data
    named = data.train[0]
    return replace(
        data,
        pairs=data.pairs or named in tasks.TASKS,
        images=data.images or (named == SCENES and not data.pairs),
    )


def device_for(asked: str) -> torch.device:
    """The device by name; "auto" is a GPU if there is one."""
    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        kind = torch.device(asked).type
    except RuntimeError:  # no device at all
        kind = ""
    if kind in ("", "meta"):
        raise RegardError(f"nothing is computed on a device {asked!r}; give cpu, cuda or cuda:1")
    return usable(asked)
