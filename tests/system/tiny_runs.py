"""Runs small enough to be broken a hundred times: how they are started, and what they leave."""

import random
import time
from pathlib import Path

from nursery import Nursery

from regard.data.builtin.scenes import write_folder
from regard.storage import event_log
from regard.storage.tensors import TensorFolder
from regard.training.checkpoints.reading import Checkpoint, stored_steps

STEPS = 24
COMMON = (
    "model.layers=1",
    "model.width=16",
    "model.heads=2",
    "model.hidden=32",
    "model.dropout=0.1",
    "training.context=16",
    "training.micro_batch_size=2",
    "training.ema=0.9",
    "training.checkpoint_every=4",
    "training.validate_every=6",
    "training.log_every=1",
    "training.device=cpu",
)
TEXT = "the cat sat on a mat and saw some dogs run after one red ball in an old park"
WORDS = TEXT.split()


def language_model(folder: Path) -> list[str]:
    more = ["training.tokens_per_step=64", "tokenizer.vocabulary=290", "training.average=2"]
    return ["text", "--model", "gpt2-tiny", "--tokenizer", "bpe", *_set(*more)]


def masked_model(folder: Path) -> list[str]:
    more = ["training.tokens_per_step=64", "optimizer.kind=muon", "training.spike=6"]
    return ["text", "--model", "bert-tiny", "--tokenizer", "char", *_set(*more)]


def translator(folder: Path) -> list[str]:
    more = ["training.tokens_per_step=96", "tokenizer.dropout=0.1", "training.label_smoothing=0.1"]
    pairs = ["--pairs", "a.txt", "b.txt", "--tokenizer", "bpe"]
    return [*pairs, "--model", "transformer-tiny", *_set(*more, "tokenizer.vocabulary=290")]


def carried_model(folder: Path) -> list[str]:
    kept = [change for change in COMMON if not change.startswith("model.heads")]
    more = ["training.tokens_per_step=64", "model.weight_dropout=0.2", "training.average=2"]
    return ["text", "--model", "lstm", "--tokenizer", "char", "--set", *kept, *more]


def captioner(folder: Path) -> list[str]:
    write_folder(folder / "pictures", 20, 0, "train", 32, told=2)
    kept = [change for change in COMMON if not change.startswith(("model.hidden", "model.layers"))]
    more = [
        "training.tokens_per_step=48",
        "model.picture=32",
        "model.layers=1",
        "data.held_out=0.3",
    ]
    images = ["--images", "pictures", "--model", "captioner-lstm", "--tokenizer", "word"]
    return [*images, "--set", *kept, *more, "model.context=16"]


def attentive_pairs(folder: Path) -> list[str]:
    kept = [change for change in COMMON if not change.startswith("model.heads")]
    pairs = ["--pairs", "a.txt", "b.txt", "--model", "bahdanau", "--tokenizer", "char"]
    return [*pairs, "--set", *kept, "training.tokens_per_step=96"]


def convolution(folder: Path) -> list[str]:
    kept = [change for change in COMMON if not change.startswith(("model.heads", "model.hidden"))]
    text = ["text", "--model", "conv", "--tokenizer", "char"]
    return [*text, "--set", *kept, "training.tokens_per_step=64"]


def bag_of_words(folder: Path) -> list[str]:
    lines = (folder / "a.txt").read_text().splitlines()
    labelled = [f"{line}\t{'cat' if 'cat' in line else 'none'}\n" for line in lines]
    (folder / "labels.tsv").write_text("".join(labelled))
    kept = [change for change in COMMON if change.startswith("training.")]
    kept.remove("training.context=16")
    pairs = ["--pairs", "labels.tsv", "--model", "bag-linear", "--tokenizer", "word"]
    return [*pairs, "--set", *kept, "training.tokens_per_step=64"]


def _set(*changes: str) -> list[str]:
    return ["--set", *COMMON, *changes]


KINDS = {
    "text": language_model,
    "gaps": masked_model,
    "pairs": translator,
    "carried": carried_model,
    "images": captioner,
}
# Families that are broken less often.
OTHERS = {"attentive pairs": attentive_pairs, "convolution": convolution, "labels": bag_of_words}


def made(folder: Path, kind: str) -> list[str]:
    """A folder with something to learn from, and the command that learns it."""
    folder.mkdir(parents=True)
    rng = random.Random(0)
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(3, 9))) for _ in range(60)]
    (folder / "text").mkdir()
    for part in range(3):
        (folder / "text" / f"{part}.txt").write_text("\n".join(lines[part::3]) + "\n")
    (folder / "a.txt").write_text("\n".join(lines) + "\n")
    (folder / "b.txt").write_text("\n".join(line[::-1] for line in lines) + "\n")
    return ["train", *(KINDS | OTHERS)[kind](folder), "--steps", str(STEPS), "--out", "run"]


class Whole:
    """What an unbroken run left."""

    def __init__(self, nursery: Nursery, folder: Path, kind: str) -> None:
        command, begin = made(folder, kind), time.monotonic()
        ended = nursery.run(folder, *command)
        assert ended.code == 0, ended.out
        self.seconds = time.monotonic() - begin
        self.operations = ended.operations
        self.left = left(folder / "run")
        assert [e for e in event_log.read(folder / "run") if e["event"] == "step"][-1][
            "epoch"
        ] > 1.1


def left(run: Path) -> dict[str, object]:
    """All that two runs must have alike, to the bit."""
    events = event_log.read(run)
    assert events[-1]["event"] == "end"
    return {
        **kept(run),
        "orders": {e["step"]: e["order"] for e in events if e["event"] == "step"},
        "validations": {
            e["step"]: (e.get("loss"), e.get("bleu")) for e in events if e["event"] == "validation"
        },
        "reason": events[-1]["reason"],
    }


def kept(run: Path) -> dict[str, object]:
    """The same without what the log tells."""
    last = stored_steps(run)[-1]
    names = ("model.safetensors", "optimizer.safetensors")
    files = {name: (run / "checkpoints" / str(last) / name).read_bytes() for name in names}
    return {
        "last": last,
        **files,
        "weights": {name: t.tolist() for name, t in TensorFolder(run).items()},
        "order": Checkpoint(run / "checkpoints" / str(last)).place.order,
    }
