"""`regard caption`: what a model says of pictures, and where it looked."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.text import Text

from regard.commands.arguments import check_writable, option
from regard.commands.printing import note, put
from regard.data.feeds.images import as_tensor
from regard.data.readers.files import expanded
from regard.data.readers.images import Pixels, read_image
from regard.decoding.captions import Caption, captioned
from regard.decoding.settings import Beam
from regard.decoding.text_model import TextModel
from regard.errors import Problems, RegardError
from regard.inspection.caption_pictures import draw_caption, words_seen
from regard.inspection.drawing import KINDS
from regard.loading import text_model_of
from regard.models.config import Ability
from regard.runs.plan import device_for
from regard.runs.stored_run import open_run
from regard.terminal import literal

ROWS = 32  # pictures at once
SUFFIXES = (".png", ".jpg", ".jpeg")
SEEN = ".seen.png"  # our own drawings


@dataclass(frozen=True)
class CaptionPictures:
    """Describe pictures, and show where each word looked.

    $ regard caption runs/photos dog.jpg
    $ regard caption runs/photos dog.jpg --show           writes dog.seen.png too
    $ regard caption runs/photos holidays --json          all pictures of a folder
    """

    path: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """A run's folder."""
    images: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(metavar="IMAGE…", help_behavior_hint=""),
    ] = ()
    """PNG or JPEG files, or folders of them."""
    show: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Draw each picture with every word's attention over it, into the folder one is in."""
    out: Annotated[
        str,
        tyro.conf.arg(
            aliases=["-o"], metavar="FILE", help_behavior_hint="(default: the image's name)"
        ),
    ] = ""
    """The drawing of one picture: PNG, SVG or PDF by its suffix; it is shown then."""
    prefix: Annotated[str, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")] = ""
    """How every caption must begin."""
    beam: Annotated[int, tyro.conf.arg(metavar="N")] = 5
    """Hypotheses kept; 1 is greedy."""
    n_best: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """Captions of each picture."""
    length_penalty: Annotated[float, tyro.conf.arg(metavar="X")] = 1.0
    """Hypotheses are ranked by log-probability / tokens ** X."""
    device: Annotated[str, tyro.conf.arg(metavar="NAME")] = "auto"
    """cpu, cuda, or what there is."""
    json: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """A JSON object for each picture, with its captions, words and their attention."""

    def run(self, console: Console) -> None:
        beam = Beam(
            self.beam, self.length_penalty, n_best=self.n_best, attention=True, named=option
        )
        paths = self._paths()
        run = open_run(Path(self.path), device_for(self.device))
        speaker = text_model_of(run)
        speaker.require(Ability.CAPTION, who=self.path, what="describe pictures")
        config: Any = run.config
        size, drawn = config.picture, self._drawings(paths)
        for path, image, best in self._described(speaker, paths, size, beam):
            out = drawn.get(path)
            if out is not None:
                seen = words_seen(best[0], run.tokenizer)
                draw_caption(image, seen, out, literal(best[0].text))
            if self.json:
                facts = _facts(path, best, config, speaker)
                put(json.dumps(facts, ensure_ascii=False) + "\n")
                continue
            for one in best:
                name = Text(f"{literal(str(path))}: ", "cyan") if len(paths) > 1 else Text()
                console.print(name.append(literal(one.text), "not cyan"), soft_wrap=True)
            if out is not None:
                console.print(Text(f"wrote {out}", "dim"), soft_wrap=True)

    def _paths(self) -> list[Path]:
        """The pictures that are meant; all that is wrong with their names is told."""
        problems = Problems("caption")
        problems.require(bool(self.images), "name a picture, or a folder of them")
        found: list[Path] = []
        for given in self.images:
            path = expanded(given)
            if path.is_dir():
                inside = sorted(filter(_is_picture, path.iterdir()))
                problems.require(bool(inside), f"{path} has no PNG or JPEG in it")
                found += inside
            else:
                problems.require(path.is_file(), f"{path} is not there")
                found.append(path)
        problems.require(
            not self.out or len(found) == 1, "--out is for one picture; use --show for several"
        )
        problems.require(
            not self.out or Path(self.out).suffix.lower() in KINDS,
            f"cannot draw to {self.out}: its name must end in one of {', '.join(KINDS)}",
        )
        problems.report()
        return list(dict.fromkeys(found))

    def _drawings(self, paths: list[Path]) -> dict[Path, Path]:
        """Where the drawing of each picture goes."""
        if self.out:
            drawn = {paths[0]: Path(self.out)}
        elif self.show:
            names = [path.stem for path in paths]
            if len(set(names)) < len(names):
                names = [path.name for path in paths]
            if len(set(names)) < len(names):  # of several folders
                names = [f"{number}-{path.name}" for number, path in enumerate(paths, 1)]
            drawn = {path: Path(f"{name}{SEEN}") for path, name in zip(paths, names, strict=True)}
        else:
            return {}
        problems, described = Problems("caption"), {path.resolve() for path in paths}
        for out in drawn.values():
            check_writable(out)
            problems.require(
                out.resolve() not in described,
                f"the drawing would lie over the picture {out}; name another file (--out)",
            )
        problems.report()
        return drawn

    def _described(
        self, speaker: TextModel, paths: list[Path], size: int, beam: Beam
    ) -> Iterator[tuple[Path, Pixels, list[Caption]]]:
        """Each picture that can be read, in order, with its best captions."""
        failed = []
        for first in range(0, len(paths), ROWS):
            images: dict[Path, Pixels] = {}
            for path in paths[first : first + ROWS]:
                try:
                    images[path] = read_image(path, size)
                except RegardError as error:
                    failed.append(str(error))
            if images:
                pixels = as_tensor(list(images.values()))
                found = captioned(speaker, pixels, beam, prefix=self.prefix)
                for (path, image), best in zip(images.items(), found, strict=True):
                    yield path, image, best
        if len(failed) == len(paths):
            raise RegardError("; ".join(failed))
        for message in failed:
            note(message)


def _is_picture(path: Path) -> bool:
    """Whether a file of a folder is meant; our own drawings are not, nor what is hidden."""
    name = path.name.lower()
    return name.endswith(SUFFIXES) and not name.endswith(SEEN) and not name.startswith(".")


def _facts(path: Path, best: list[Caption], config: Any, speaker: TextModel) -> dict[str, Any]:
    """A picture's captions as JSON tells them; attention is row by row of the grid."""
    assert speaker.tokenizer is not None
    captions = []
    for one in best:
        words = [
            {"word": word, "attention": seen.reshape(config.side, config.side).tolist()}
            for word, seen in words_seen(one, speaker.tokenizer)
        ]
        facts = {"text": one.text, "logprob": one.logprob, "score": one.score, "words": words}
        captions.append(facts)
    return {"image": str(path), "captions": captions}
