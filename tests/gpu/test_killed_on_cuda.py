"""A run on a GPU that is killed at any moment, or finds the GPU's memory taken by somebody else.

REGARD_SEEDS says how many times training is killed; 20 where it is not said.
"""

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from regard.storage.tensors import TensorFolder
from regard.training.checkpoints.reading import stored_steps

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")

KILLS = int(os.environ.get("REGARD_SEEDS", "20"))
STEPS = 400
SETTINGS = (
    *("model.layers=2", "model.width=128", "model.dropout=0.1", "training.context=64"),
    *(
        "training.tokens_per_step=2048",
        "training.micro_batch_size=32",
        "training.checkpoint_every=20",
    ),
    *("training.validate_every=50", "training.log_every=10", "training.device=cuda"),
)
PATIENCE = 300.0  # seconds for a run


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("killed")
    rng = random.Random(0)
    words = ["the", "cat", "sat", "on", "mats", "and", "saw", "dogs", "run", "after", "balls"]
    (made / "text.txt").write_text(
        "\n".join(" ".join(rng.choices(words, k=rng.randint(3, 9))) for _ in range(4000))
    )
    return made


def begun(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "regard", *arguments],
        cwd=folder,
        env={**os.environ, "REGARD_CACHE": str(folder / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def command(out: str) -> list[str]:
    words = ["train", "text.txt", "--model", "gpt2-tiny", "--steps", str(STEPS), "--out", out]
    return [*words, "--set", *SETTINGS]


def ended(folder: Path, *arguments: str) -> tuple[int, str]:
    process = begun(folder, *arguments)
    try:
        said, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    return process.returncode, said


@pytest.fixture(scope="module")
def one(folder) -> Path:
    """An unbroken run."""
    code, said = ended(folder, *command("one"))
    assert code == 0, said
    return folder / "one"


@pytest.fixture(scope="module")
def whole(folder, one) -> list[Path]:
    """Two unbroken runs."""
    code, said = ended(folder, *command("two"))
    assert code == 0, said
    return [one, folder / "two"]


def apart(first: Path, second: Path) -> float:
    """The largest difference of any weight of two runs."""
    one, two = TensorFolder(first), TensorFolder(second)
    assert one.shapes == two.shapes
    return max(float((one[name] - two[name]).abs().max()) for name in one)


def test_killed_again_and_again_it_ends_as_near_to_an_unbroken_run_as_two_of_those(folder, whole):
    rng, kills, chains, furthest = random.Random(0), 0, 0, 0.0
    while kills < KILLS:
        out = f"broken{chains}"
        for _ in range(min(4, KILLS - kills)):
            kills += killed(folder, out, rng)
        code, said = ended(folder, *command(out))
        assert code == 0, said
        furthest = max(furthest, apart(folder / out, whole[0]))
        chains += 1
    usual = apart(*whole)
    print(f"{kills} kills in {chains} chains: {furthest} from an unbroken run, those {usual} apart")
    assert kills >= KILLS
    assert furthest <= usual


def killed(folder: Path, out: str, rng: random.Random) -> bool:
    """Start or resume a run and kill it at some moment after it has begun to save."""
    process = begun(folder, *command(out))
    steps, begin = stored_steps(folder / out), time.monotonic()
    while stored_steps(folder / out) == steps and process.poll() is None:
        assert time.monotonic() - begin < PATIENCE
        time.sleep(0.01)
    time.sleep(rng.uniform(0, 0.6))
    process.kill()
    process.communicate()
    return process.returncode == -9


TAKER = """import sys, torch
left, taken = int(sys.argv[1]), []
for size in (1 << 30, 1 << 26, 1 << 21):
    while torch.cuda.mem_get_info()[0] >= left + size:
        try:
            taken.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            break
print("taken", flush=True)
sys.stdin.read()"""


@pytest.mark.parametrize("left", [0, 1 << 30])
@pytest.mark.parametrize("words", ["train", "generate", "evaluate"])
def test_a_gpu_whose_memory_another_process_has_taken_is_one_sentence(folder, one, left, words):
    taker = subprocess.Popen(
        [sys.executable, "-c", TAKER, str(left)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    asked = {
        "train": [*command(f"full{left}"), "model.width=4096", "model.layers=24"],
        "generate": ["generate", "one", "the cat", "--device", "cuda", "--max-tokens", "8"],
        "evaluate": ["evaluate", "one", "text.txt", "--device", "cuda"],
    }[words]
    try:
        assert taker.stdout.readline() == "taken\n"
        code, said = ended(folder, *asked)
    finally:
        taker.communicate("")
    assert "Traceback" not in said
    if code:  # a small model may fit into what is left
        assert code == 2
        (sentence,) = re.findall("^error: .*", said, re.MULTILINE)
        assert re.search(r"memory|GB free", sentence)
    else:
        assert left >= 1 << 30
        assert words != "train"
