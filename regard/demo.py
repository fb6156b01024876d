"""`make demo`: the main job, end to end, on data that every Python has with it.

A small Transformer learns from the standard library's own source, live in the terminal, is measured
on files it never saw, and then completes a few lines of Python.
"""

import os
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from regard.commands.printing import fail, output
from regard.commands.train import describe, train
from regard.data.progress import Progress
from regard.decoding.decode_batch import continued
from regard.decoding.settings import Sampling
from regard.errors import RegardError
from regard.runs import recipes
from regard.runs.plan import plan
from regard.runs.run_folder import clear, followed
from regard.runs.stored_run import Run, is_ours, open_run
from regard.storage import lock

RECIPE, FOLDER = "python", Path("demo") / "python"
PROMPTS = (
    "import os\nimport ",
    "def __init__(self, ",
    "    for i in range(",
    "    if not isinstance(",
    "    raise ValueError(",
)
NEW_TOKENS = 24


def main(changes: tuple[str, ...] = (), folder: Path = FOLDER) -> None:
    """Train, complete, and say what to try next; `changes` are settings as --set takes them."""
    console = output()
    try:
        run(console, changes, folder)
    except RegardError as error:
        fail(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def run(console: Console, changes: tuple[str, ...], folder: Path) -> None:
    console.print(
        "A small Transformer learns Python from the standard library's own source.\n", style="bold"
    )
    made = plan(recipes.override(recipes.load(RECIPE), changes), Progress(console))
    lock.check_free(folder)
    if is_ours(folder):  # an earlier demo's
        clear(followed(folder))
    describe(made, folder, console, full=False)
    console.print()
    if train(made, folder, console, hints=False).reason == "interrupted":
        raise KeyboardInterrupt
    console.print("\nWhat it writes behind a few beginnings:\n", style="bold")
    trained = open_run(folder)
    for prompt in PROMPTS:
        console.print(Text(prompt, "cyan").append(completion(trained, prompt), "default"))
        console.print(Text("─" * 40, "dim"))
    console.print(Text("\nNow with your own text:", "bold"))
    for command, meaning in next_steps(folder):
        console.print(Text(f"  {command}", "cyan"), Text(f"    {meaning}", "dim"), sep="\n")


def completion(run: Run, prompt: str) -> str:
    """What the model writes behind a prompt, up to the end of a line or two."""
    ids = run.tokenizer.encode(prompt).tolist()
    asked = Sampling(limit=NEW_TOKENS, temperature=0.4, top_k=20)
    written = list(continued(run.writer, ids, asked))
    text = run.tokenizer.decode(written)
    return "\n".join(text.split("\n")[:2]).rstrip()


def next_steps(folder: Path) -> list[tuple[str, str]]:
    """Commands to type next, as this machine spells them."""
    regard = os.path.relpath(Path(sys.executable).with_name("regard"))
    return [
        (f"{regard} train notes.txt", "any text, folder or glob: a model that writes like it"),
        (f"{regard} train --pairs en.txt de.txt", "two aligned files: a translator"),
        (f'{regard} generate {folder} "class "', "more from the model above"),
        (f"{regard} plot {folder} -o curves.png", "its curves as a picture"),
        (f"{regard} train --help", "everything else; docs/guide.md tells more"),
    ]


if __name__ == "__main__":
    main()
