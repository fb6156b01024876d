"""tinyshakespeare by characters, 6 layers of width 384: our recipe against nanoGPT, by the clock.

    python bench/shakespeare.py input.txt --nanogpt folder     (with CUDA)

Each contestant is a fresh process, and its clock runs from the start: imports, reading, compiling
and its own validations included. nanoGPT's figures are those it prints (200 random batches of its
validation part); ours are over the whole of the same part, the last tenth of the text.
"""

import argparse
import io
import json
import re
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path

from measure import machine

from regard.cli import main as main_of_regard

OURS = re.compile(r"step\s+(\d+)/\d+\s+valid\s+([\d.]+)")
THEIRS = re.compile(r"step (\d+): train loss [\d.]+, val loss ([\d.]+)")
Curve = list[tuple[float, int, float]]  # seconds, step, validation loss


def watch(command: list[str], pattern: re.Pattern[str], folder: Path | None = None) -> Curve:
    """Run a training and note when it prints which validation loss."""
    begin, curve = time.perf_counter(), []
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout
        lines = []
        for line in process.stdout:
            lines.append(line)
            if found := pattern.search(line):
                curve.append((time.perf_counter() - begin, int(found[1]), float(found[2])))
    if process.returncode:
        sys.exit("".join(lines[-30:]))
    return curve


TINY = (
    *("model.layers=1", "model.width=16", "model.heads=2", "model.context=16", "training.steps=4"),
    *("training.tokens_per_step=64", "training.validate_every=2", "training.log_every=1"),
)


def ours(text: Path, seed: int, folder: Path, tiny: bool) -> tuple[Curve, float]:
    """Our curve, and the final weights' loss over the whole held-out part in float32."""
    regard = [sys.executable, "-m", "regard"]
    train = ["train", str(text), "--recipe", "shakespeare-char", "--seed", str(seed)]
    small = ["--set", *TINY] if tiny else []
    curve = watch([*regard, *train, "--out", str(folder), *small], OURS)
    with redirect_stdout(io.StringIO()) as said:
        main_of_regard(["evaluate", str(folder), "--json"])
    return curve, json.loads(said.getvalue())["loss"]


def nanogpt(text: Path, folder: Path) -> Curve:
    """nanoGPT's own preparation and configuration, unchanged."""
    data = folder / "data" / "shakespeare_char"
    (data / "input.txt").write_text(text.read_text(encoding="utf-8"), encoding="utf-8")
    subprocess.run([sys.executable, "prepare.py"], cwd=data, check=True, capture_output=True)
    command = [sys.executable, "-u", "train.py", "config/train_shakespeare_char.py"]
    return watch(command, THEIRS, folder)


def first_at(curve: Curve, loss: float) -> str:
    reached = next(((s, n) for s, n, value in curve if value <= loss), None)
    return f"{reached[0]:.1f} s, step {reached[1]}" if reached else "never"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT to race against")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="a small model, to see that all runs")
    asked = parser.parse_args()
    if asked.tiny:
        asked.seeds = 1
    print(f"tinyshakespeare, characters, 6 × 384, context 256  [{machine()}]")
    peer: Curve = nanogpt(asked.text, asked.nanogpt) if asked.nanogpt else []
    target = min((loss for _, _, loss in peer), default=1.4697)
    if peer:
        print(f"nanoGPT: best {target:.4f} at {first_at(peer, target)}; in all {peer[-1][0]:.1f} s")
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(asked.seeds):
            curve, exact = ours(asked.text, seed, Path(folder) / str(seed), asked.tiny)
            best = min(loss for _, _, loss in curve)
            print(
                f"regard, seed {seed}: best {best:.4f} at {first_at(curve, best)}, in float32 "
                f"{exact:.4f}; {target:.4f} at {first_at(curve, target)}; in all "
                f"{curve[-1][0]:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
