"""A run killed in the middle and gone on with, against unbroken ones: how alike are the losses?

    python bench/resume.py books/train.txt.gz     (with CUDA; GPT-2 124M, bf16, compiled)
    python bench/resume.py text.txt --tiny        (a model of two small layers, on a CPU too)

Some sums are made in another order each time on a GPU, so two unbroken runs already differ, and
more with each step. What tells is the step right behind the checkpoint, and the growth from there.
With `--set training.compile=no` and CUBLAS_WORKSPACE_CONFIG set, see tests/gpu for the exact case.
"""

import argparse
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path

from measure import machine

from regard.cli import main as main_of_regard
from regard.storage.event_log import read
from regard.training.checkpoints.reading import stored_steps

TINY = (
    *("model.layers=2", "model.width=16", "model.heads=2", "training.context=16"),
    *("tokenizer.vocabulary=300", "training.compile=no"),
)


def command(arguments: argparse.Namespace, out: Path) -> list[str]:
    half = arguments.steps // 2
    settings = [
        f"training.steps={arguments.steps}",
        f"training.checkpoint_every={half}",
        f"training.validate_every={arguments.steps}",
        "training.sample_every=-1",
        "training.log_every=1",
        f"training.micro_batch_size={arguments.rows}",
        f"training.tokens_per_step={arguments.rows * (16 if arguments.tiny else 1024)}",
        *arguments.set,
    ]
    recipe = ["--recipe", arguments.recipe, "--out", str(out), "--set", *settings]
    return [sys.executable, "-m", "regard", "train", *arguments.text, *recipe]


def trained(words: list[str], tiny: bool) -> None:
    if tiny:  # in this process, which has all libraries already
        with redirect_stdout(io.StringIO()):
            main_of_regard(words[3:])
        return
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def killed(words: list[str], out: Path) -> None:
    """Start a run, and SIGKILL it a few steps behind its first checkpoint."""
    run = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    while not stored_steps(out):
        assert run.poll() is None, "it ended before its first checkpoint"
        time.sleep(0.05)
    time.sleep(0.5)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()


def losses(out: Path) -> dict[int, tuple[float, str]]:
    """Loss and order of examples of each step."""
    steps = [event for event in read(out) if event["event"] == "step"]
    return {event["step"]: (event["loss"], event["order"]) for event in steps}


def apart(some: dict[int, tuple[float, str]], others: dict[int, tuple[float, str]]) -> list[float]:
    assert some.keys() == others.keys()
    assert all(some[step][1] == others[step][1] for step in some), "the examples differ"
    return [abs(some[step][0] - others[step][0]) for step in some]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="+")
    parser.add_argument("--recipe", default="gpt2-124m")
    parser.add_argument("--rows", type=int, default=64, help="rows of 1,024 tokens in a step")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--set", nargs="*", default=[])
    parser.add_argument("--tiny", action="store_true", help="a small model, to see that all runs")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.rows, arguments.steps = 2, 20
        arguments.set = [*TINY, *arguments.set]
    with tempfile.TemporaryDirectory() as folder:
        runs = [Path(folder, name) for name in ("first", "second", "broken")]
        for out in runs[:2]:
            trained(command(arguments, out), arguments.tiny)
        words = command(arguments, runs[2])
        killed(words, runs[2])
        trained(words, arguments.tiny)
        first, second, broken = (losses(out) for out in runs)
    half = arguments.steps // 2
    for name, some, others in (
        ("two unbroken runs", first, second),
        ("unbroken and broken, resumed", first, broken),
        ("the other and broken, resumed", second, broken),
    ):
        found = apart(some, others)
        print(f"  {name:32}  mean of ten steps, in nats:")
        for begin in range(0, arguments.steps, 10):
            mark = " <- behind the checkpoint" if begin == half else ""
            print(f"    from step {begin + 1:4}  {sum(found[begin : begin + 10]) / 10:.2e}{mark}")
        print(
            f"    the first step behind the checkpoint {found[half]:.2e}, largest {max(found):.2e}"
        )
    print(json.dumps({"steps": arguments.steps, "machine": machine()}))


if __name__ == "__main__":
    main()
