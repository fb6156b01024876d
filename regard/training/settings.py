"""What decides a run whatever its model is, as frozen values; 0, "" and "auto" mean "what fits".

The whole of it, the model's own settings too, is `families/settings.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Protocol, get_origin, get_type_hints

from regard.errors import Problems, nearest
from regard.fields import FINITE, Range, check
from regard.models.config import Form

Count = Annotated[int, Range(0, 1 << 40)]  # 0: none, or what fits
Size = Annotated[int, Range(0, 1 << 24)]
Factor = Annotated[float, Range(0, 1000)]
Fraction = Annotated[float, Range(0, 1)]  # where all of something may be meant


@dataclass(frozen=True)
class DataSettings:
    """What is read, and how it is divided."""

    train: tuple[str, ...] = ()  # files, folders, globs, "-" for standard input, or a built-in name
    valid: tuple[str, ...] = ()  # named held-out files; none: a part is held out by itself
    pairs: bool = False  # the files are a source and a target, line by line
    images: bool = False  # it is a folder of images with a list of captions
    augment: bool = True  # images: a little closer, brighter, darker each time they are seen
    # the share held out when no file is named (pairs: half of it)
    held_out: Annotated[float, Range(0, 0.9)] = 0.1
    lines: Literal["auto", "yes", "no"] = "auto"  # each line is a text; auto: where words count
    document_mask: bool = False  # documents in one row do not see one another
    # pairs with a side of more tokens are left out; 0: the model's context
    longest: Annotated[int, Range(0, 1 << 20)] = 0
    # pairs with a side so many times the other are left out; 0: none
    ratio: Annotated[float, Range(0, 10**6)] = 0.0
    # pairs: lengths in a batch differ by so many tokens more
    length_jitter: Annotated[int, Range(0, 1 << 20)] = 0
    examples: Annotated[int, Range(100, 10**8)] = 20_000  # how many a built-in task makes

    @property
    def form(self) -> Form:
        """What kind of data it is."""
        return "pairs" if self.pairs else "images" if self.images else "text"


@dataclass(frozen=True)
class TokenizerSettings:
    """How text becomes tokens."""

    kind: Literal["auto", "bpe", "byte", "char", "word"] = "auto"
    vocabulary: Size = 0  # 0: by the size of the data
    min_frequency: Count = 0  # char, word: tokens seen fewer times are left out
    tokenised: Literal["auto", "yes", "no"] = "auto"  # word: the text is cut at blanks already
    shared: bool = True  # pairs: one vocabulary for both sides
    dropout: Annotated[float, Range(0, 0.99)] = 0.0  # BPE-dropout on training pairs
    file: str = ""  # a tokenizer.json to use instead of learning one


@dataclass(frozen=True)
class OptimizerSettings:
    kind: Literal["adamw", "muon", "sgd"] = "adamw"
    # the highest learning rate; 0: the usual one for the model
    learning_rate: Annotated[float, Range(0, 100)] = 0.0
    # AdamW: how much of the mean of gradients stays
    beta1: Annotated[float, Range(0, 0.99999)] = 0.9
    # AdamW: how much of the mean of their squares stays
    beta2: Annotated[float, Range(0, 0.999999)] = 0.95
    epsilon: Annotated[float, Range(1e-20, 1)] = 1e-8  # AdamW: added to the root it divides by
    # on matrices, but for SGD; never on biases, norms and embeddings
    weight_decay: Annotated[float, Range(0, 100)] = 0.1
    l2: Annotated[float, Range(0, 1)] = 0.0  # SGD: this times each weight is added to its gradient
    # Muon's highest learning rate, for the matrices of the blocks
    muon_learning_rate: Annotated[float, Range(1e-12, 100)] = 0.02
    momentum: Annotated[float, Range(0, 0.99999)] = 0.95  # Muon's
    clip: Annotated[float, Range(0, 10**12)] = 1.0  # the gradient's largest norm; 0: any


@dataclass(frozen=True)
class ScheduleSettings:
    kind: Literal["constant", "cosine", "inverse-sqrt", "plateau"] = "constant"
    # steps; -1: a twentieth of the run, at most 500
    warmup: Annotated[int, Range(-1, 1 << 40)] = -1
    decay_fraction: Fraction = 0.4  # constant: the share of the run that decays at its end
    min_lr_ratio: Fraction = 0.05  # constant, cosine: the last learning rate as a share of the peak
    # plateau: what a validation without a new best leaves of the learning rate
    cut: Annotated[float, Range(0.01, 1)] = 0.25


@dataclass(frozen=True)
class TrainingSettings:
    steps: Annotated[int, Range(1, 1 << 40)] = 1000  # optimizer steps
    # passes over the data, instead of steps; 0: word2vec 5, else by steps
    epochs: Annotated[float, Range(0, 10**6)] = 0.0
    tokens_per_step: Annotated[int, Range(0, 1 << 32)] = 0  # 0: by the machine
    context: Size = 0  # tokens in a row of text; 0: the model's context, or less for little text
    micro_batch_size: Size = 0  # computed at once; 0: as many as fit, the rest by accumulation
    seed: Annotated[int, Range(0, (1 << 63) - 1)] = 0  # what all that is random follows from
    device: str = "auto"  # cpu, cuda, or what there is
    precision: Literal["auto", "float32", "bf16", "bf16-weights"] = "auto"  # bf16 on GPUs
    compile: Literal["auto", "yes", "no"] = "auto"  # where it pays: long runs on a GPU
    recompute: bool = False  # activation checkpointing: blocks are computed again going back
    vectors: str = ""  # word vectors that the embedding begins with: a word2vec run, or a file
    # the share of a target spread over all tokens
    label_smoothing: Annotated[float, Range(0, 0.99)] = 0.0
    r_drop: Factor = 0.0  # R-Drop: rows are read twice, with other dropout, and must agree
    ar_alpha: Factor = 0.0  # recurrent texts: times the mean square of what outputs are made of
    tar_beta: Factor = 0.0  # recurrent texts: times that of its change from token to token
    # encoders: the share of tokens that is hidden
    masked: Annotated[float, Range(0.01, 0.99)] = 0.15
    # decay of the running mean of weights; 0: none
    ema: Annotated[float, Range(0, 0.9999999)] = 0.0
    # the final weights are the mean of so many last checkpoints
    average: Annotated[int, Range(0, 1000)] = 0
    validate_every: Count = 0  # steps; 0: twenty times in the run, at most every 50 steps
    patience: Count = 0  # validations without a new best before stopping early; 0: never
    checkpoint_every: Count = 0  # steps; 0: with each validation
    keep: Annotated[int, Range(0, 1000)] = 1  # checkpoints that stay, the best not counted
    # steps; 0: with each validation; -1: never
    sample_every: Annotated[int, Range(-1, 1 << 40)] = 0
    log_every: Count = 0  # steps; 0: about two hundred times in the run
    tensorboard: bool = False  # write its files into the run too
    on_fault: Literal["skip", "back", "stop"] = "skip"  # what a broken number or a spike leads to
    # a loss so many standard deviations above those before is a fault; 0: none
    spike: Annotated[float, Range(0, 10**6)] = 0.0
    distribution: Literal["ddp", "fsdp"] = "ddp"  # many processes: copies of the model, or shares
    # minutes that one of many processes waits for another
    timeout: Annotated[float, Range(0.01, 10**5)] = 30.0


def changed_section(section: Any, name: str, table: Mapping[str, Any], problems: Problems) -> Any:
    """A section with what a table of TOML says, which `check_sections` looks at."""
    kinds = get_type_hints(type(section))
    for key in (key for key in table if key not in kinds):
        problems.add(f"[{name}] has no key {key!r}; {nearest(key, kinds)}")
    known = {key: _from_toml(table[key], kinds[key]) for key in table if key in kinds}
    return replace(section, **known)


def _from_toml(value: Any, kind: Any) -> Any:
    """A value of TOML as its field spells it: a list or one text as a tuple, 1 as 1.0."""
    if get_origin(kind) is tuple:
        listed = [value] if isinstance(value, str) else value
        return tuple(listed) if isinstance(listed, list) else listed
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < FINITE else value  # and out of every range
    return value


def check_sections(sections: Mapping[str, Any], problems: Problems) -> None:
    """Note what is wrong in tables of settings, as `[table] key must be …`."""
    for name, section in sections.items():
        check(section, problems, named=f"[{name}] {{}}".format)


class RunSettings(Protocol):
    """What training asks of the settings of a run."""

    @property
    def optimizer(self) -> OptimizerSettings: ...

    @property
    def schedule(self) -> ScheduleSettings: ...

    @property
    def training(self) -> TrainingSettings: ...
