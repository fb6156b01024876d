"""What decides a run whatever its model is, as frozen values; 0, "" and "auto" mean "what fits".

The whole of it, the model's own settings too, is `families/settings.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args, get_origin, get_type_hints

from regard.errors import Problems, nearest
from regard.models.config import Form


@dataclass(frozen=True)
class DataSettings:
    """What is read, and how it is divided."""

    train: tuple[str, ...] = ()  # files, folders, globs, "-" for standard input, or a built-in name
    valid: tuple[str, ...] = ()  # named held-out files; none: a part is held out by itself
    pairs: bool = False  # the files are a source and a target, line by line
    images: bool = False  # it is a folder of images with a list of captions
    augment: bool = True  # images: a little closer, brighter, darker each time they are seen
    held_out: float = 0.1  # the share held out when no file is named (pairs: half of it)
    lines: Literal["auto", "yes", "no"] = "auto"  # each line is a text; auto: where words count
    document_mask: bool = False  # documents in one row do not see one another
    longest: int = 0  # pairs with a side of more tokens are left out; 0: the model's context
    ratio: float = 0.0  # pairs with a side so many times the other are left out; 0: none
    length_jitter: int = 0  # pairs: lengths in a batch differ by so many tokens more
    examples: int = 20_000  # how many a built-in task makes

    @property
    def form(self) -> Form:
        """What kind of data it is."""
        return "pairs" if self.pairs else "images" if self.images else "text"


@dataclass(frozen=True)
class TokenizerSettings:
    """How text becomes tokens."""

    kind: Literal["auto", "bpe", "byte", "char", "word"] = "auto"
    vocabulary: int = 0  # 0: by the size of the data
    min_frequency: int = 0  # char, word: tokens seen fewer times are left out
    tokenised: Literal["auto", "yes", "no"] = "auto"  # word: the text is cut at blanks already
    shared: bool = True  # pairs: one vocabulary for both sides
    dropout: float = 0.0  # BPE-dropout on training pairs
    file: str = ""  # a tokenizer.json to use instead of learning one


@dataclass(frozen=True)
class OptimizerSettings:
    kind: Literal["adamw", "muon", "sgd"] = "adamw"
    learning_rate: float = 0.0  # the highest learning rate; 0: the usual one for the model
    beta1: float = 0.9  # AdamW: how much of the mean of gradients stays
    beta2: float = 0.95  # AdamW: how much of the mean of their squares stays
    epsilon: float = 1e-8  # AdamW: added to the root it divides by
    weight_decay: float = 0.1  # on matrices, but for SGD; never on biases, norms and embeddings
    l2: float = 0.0  # SGD: this times each weight is added to its gradient
    muon_learning_rate: float = 0.02  # Muon's highest learning rate, for the matrices of the blocks
    momentum: float = 0.95  # Muon's
    clip: float = 1.0  # the gradient's largest norm; 0: any


@dataclass(frozen=True)
class ScheduleSettings:
    kind: Literal["constant", "cosine", "inverse-sqrt", "plateau"] = "constant"
    warmup: int = -1  # steps; -1: a twentieth of the run, at most 500
    decay_fraction: float = 0.4  # constant: the share of the run that decays at its end
    min_lr_ratio: float = 0.05  # constant, cosine: the last learning rate as a share of the peak
    cut: float = 0.25  # plateau: what a validation without a new best leaves of the learning rate


@dataclass(frozen=True)
class TrainingSettings:
    steps: int = 1000  # optimizer steps
    epochs: float = 0.0  # passes over the data, instead of steps; 0: word2vec 5, else by steps
    tokens_per_step: int = 0  # 0: by the machine
    context: int = 0  # tokens in a row of text; 0: the model's context, or less for little text
    micro_batch_size: int = 0  # computed at once; 0: as many as fit, the rest by accumulation
    seed: int = 0  # what all that is random follows from
    device: str = "auto"  # cpu, cuda, or what there is
    precision: Literal["auto", "float32", "bf16", "bf16-weights"] = "auto"  # bf16 on GPUs
    compile: Literal["auto", "yes", "no"] = "auto"  # where it pays: long runs on a GPU
    recompute: bool = False  # activation checkpointing: blocks are computed again going back
    vectors: str = ""  # word vectors that the embedding begins with: a word2vec run, or a file
    label_smoothing: float = 0.0  # the share of a target spread over all tokens
    r_drop: float = 0.0  # R-Drop: rows are read twice, with other dropout, and must agree
    ar_alpha: float = 0.0  # recurrent texts: times the mean square of what outputs are made of
    tar_beta: float = 0.0  # recurrent texts: times that of its change from token to token
    masked: float = 0.15  # encoders: the share of tokens that is hidden
    ema: float = 0.0  # decay of the running mean of weights; 0: none
    average: int = 0  # the final weights are the mean of so many last checkpoints
    validate_every: int = 0  # steps; 0: twenty times in the run, at most every 50 steps
    patience: int = 0  # validations without a new best before stopping early; 0: never
    checkpoint_every: int = 0  # steps; 0: with each validation
    keep: int = 1  # checkpoints that stay, the best not counted
    sample_every: int = 0  # steps; 0: with each validation; -1: never
    log_every: int = 0  # steps; 0: about two hundred times in the run
    tensorboard: bool = False  # write its files into the run too
    on_fault: Literal["skip", "back", "stop"] = "skip"  # what a broken number or a spike leads to
    spike: float = 0.0  # a loss so many standard deviations above those before is a fault; 0: none
    distribution: Literal["ddp", "fsdp"] = "ddp"  # many processes: copies of the model, or shares
    timeout: float = 30.0  # minutes that one of many processes waits for another


def changed_section(section: Any, name: str, table: Mapping[str, Any], problems: Problems) -> Any:
    kinds = get_type_hints(type(section))
    values = {}
    for key, value in table.items():
        if key not in kinds:
            problems.add(f"[{name}] has no key {key!r}; {nearest(key, kinds)}")
            continue
        try:
            values[key] = _fitting(value, kinds[key])
        except ValueError as error:
            problems.add(f"[{name}] {key} must be {error}, not {value!r}")
    return replace(section, **values)


def _fitting(value: Any, kind: Any) -> Any:
    """A value of TOML as its field's type; a ValueError says what it must be."""
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ValueError(f"one of {', '.join(get_args(kind))}")
        return value
    if get_origin(kind) is tuple:
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list | tuple) or not all(isinstance(v, str) for v in listed):
            raise ValueError("a list of texts")
        return tuple(listed)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < LARGEST else value  # and out of every range
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
        raise ValueError(words[kind])
    return value


LARGEST = 1 << 1000  # a float holds it

# name: (least, most); shares exclude 1 where all of something would be nothing
RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "data": {
        "held_out": (0, 0.9),
        "longest": (0, 1 << 20),
        "length_jitter": (0, 1 << 20),
        "ratio": (0, 1e6),
        "examples": (100, 10**8),
    },
    "tokenizer": {"vocabulary": (0, 1 << 24), "min_frequency": (0, 1 << 40), "dropout": (0, 0.99)},
    "optimizer": {
        "learning_rate": (0, 100),
        "beta1": (0, 0.99999),
        "beta2": (0, 0.999999),
        "epsilon": (1e-20, 1),
        "weight_decay": (0, 100),
        "l2": (0, 1),
        "muon_learning_rate": (1e-12, 100),
        "momentum": (0, 0.99999),
        "clip": (0, 1e12),
    },
    "schedule": {
        "warmup": (-1, 1 << 40),
        "decay_fraction": (0, 1),
        "min_lr_ratio": (0, 1),
        "cut": (0.01, 1),
    },
    "training": {
        "steps": (1, 1 << 40),
        "epochs": (0, 1e6),
        "tokens_per_step": (0, 1 << 32),
        "context": (0, 1 << 24),
        "micro_batch_size": (0, 1 << 24),
        "seed": (0, (1 << 63) - 1),
        "label_smoothing": (0, 0.99),
        "r_drop": (0, 1000),
        "ar_alpha": (0, 1000),
        "tar_beta": (0, 1000),
        "masked": (0.01, 0.99),
        "ema": (0, 0.9999999),
        "average": (0, 1000),
        "validate_every": (0, 1 << 40),
        "patience": (0, 1 << 40),
        "checkpoint_every": (0, 1 << 40),
        "keep": (0, 1000),
        "sample_every": (-1, 1 << 40),
        "log_every": (0, 1 << 40),
        "spike": (0, 1e6),
        "timeout": (0.01, 1e5),
    },
}


def check_ranges(sections: Mapping[str, Any], problems: Problems) -> None:
    for name, section in sections.items():
        for key, (least, most) in RANGES.get(name, {}).items():
            value = getattr(section, key)
            if not least <= value <= most:  # NaN too
                problems.add(f"[{name}] {key} must be from {least:g} to {most:g}, not {value!r}")


class RunSettings(Protocol):
    """What training asks of the settings of a run."""

    @property
    def optimizer(self) -> OptimizerSettings: ...

    @property
    def schedule(self) -> ScheduleSettings: ...

    @property
    def training(self) -> TrainingSettings: ...
