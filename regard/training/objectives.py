"""What a model is asked, and how wrong its answer was (M20): a sum over all targets.

Sums, not means: a step divides by its number of valid targets once, over all its micro-batches, so
that a batch in four parts has the gradient of the batch whole.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.batch import Batch
from regard.data.feeds.masking import IGNORE
from regard.errors import RegardError
from regard.models.config import SHORT, Form, ModelConfig, Task
from regard.models.masks import Documents
from regard.models.network import Network, SequenceModule
from regard.models.protocol import State
from regard.training.settings import TrainingSettings


@dataclass(frozen=True)
class Criterion:
    """How wrong an answer is, beside being improbable."""

    smoothing: float = 0.0  # the share of a target spread over all tokens
    r_drop: float = 0.0  # how much two readings with other dropout must agree; 0: one reading
    ar_alpha: float = 0.0  # times the mean square of hidden vectors
    tar_beta: float = 0.0  # times that of their change from token to token

    @property
    def readings(self) -> int:
        """How often each row is read."""
        return 2 if self.r_drop else 1

    @property
    def regularises(self) -> bool:
        """Whether hidden vectors cost something by themselves."""
        return bool(self.ar_alpha or self.tar_beta)


PLAIN = Criterion()


def criterion_of(training: TrainingSettings) -> Criterion:
    """What a run's settings ask for."""
    return Criterion(
        training.label_smoothing, training.r_drop, training.ar_alpha, training.tar_beta
    )


class Objective(Protocol):
    """How a batch is put to a model."""

    name: str
    varied: bool  # whether batches differ in shape
    free: bool  # whether it is judged by what it writes, never by what it would have written

    def logits(self, module: SequenceModule, batch: Batch, state: State | None = None) -> Tensor:
        """(rows, positions, vocabulary), one distribution for each of the batch's targets.

        `state` is what the rows remember of the text before, where they continue it.
        """
        ...


class Causal:
    """The next token, from those before it."""

    name = "causal"
    varied = False
    free = False

    def logits(self, module: SequenceModule, batch: Batch, state: State | None = None) -> Tensor:
        mask = None if batch.documents is None else Documents(batch.documents)
        return module(batch.tokens, state=state, mask=mask)


class Masked:
    """The tokens that were hidden, from all around them."""

    name = "masked"
    varied = False
    free = False

    def logits(self, module: SequenceModule, batch: Batch, state: State | None = None) -> Tensor:
        mask = None if batch.documents is None else Documents(batch.documents)
        return module(batch.tokens, lengths=batch.lengths, mask=mask)


class SequenceToSequence:
    """The next token of the target, from the source and the target before it."""

    name = "sequence-to-sequence"
    varied = True
    free = False

    def logits(self, module: SequenceModule, batch: Batch, state: State | None = None) -> Tensor:
        assert batch.source is not None
        memory = module.encode(batch.source, batch.source_lengths)
        # Padding stands behind every real target token: causality hides it.
        return module(batch.tokens, memory)


class Labelling(SequenceToSequence):
    """The label of a text."""

    name = "labels"


class Captioning(SequenceToSequence):
    """The next word about a picture; a picture has many captions, of which the loss knows one."""

    name = "captions"
    free = True


class Tagging:
    """A tag for each token, by a head that knows the tags."""

    name = "tags"
    varied = False
    free = False

    def logits(self, module: SequenceModule, batch: Batch, state: State | None = None) -> Tensor:
        assert isinstance(module, Network)
        return module.logits(module.hidden(batch.tokens, state=state, lengths=batch.lengths))


class Classifying:
    """One label for each row (rows, 1), by a head that is given the mean of its hidden vectors."""

    name = "row labels"
    varied = False
    free = False

    def logits(self, module: SequenceModule, batch: Batch, state: State | None = None) -> Tensor:
        assert isinstance(module, Network)
        hidden = module.hidden(batch.tokens, state=state, lengths=batch.lengths)
        rows, positions, _ = hidden.shape
        lengths = hidden.new_full((rows,), positions) if batch.lengths is None else batch.lengths
        lengths = lengths.to(hidden.device)[:, None]  # (rows, 1)
        real = torch.arange(positions, device=hidden.device) < lengths  # (rows, positions)
        mean = (hidden * real[..., None]).sum(1) / lengths.clamp(min=1)  # (rows, width)
        return module.logits(mean[:, None])


class Neighbours:
    """The words around each; only word vectors know how that is asked (`training/word2vec`)."""

    name = "neighbours"
    varied = False
    free = False

    def logits(self, module: SequenceModule, batch: Batch, state: State | None = None) -> Tensor:
        raise NotImplementedError


OBJECTIVES: Mapping[Task, Callable[[], Objective]] = {
    "causal": Causal,
    "masked": Masked,
    "sequence-to-sequence": SequenceToSequence,
    "labels": Labelling,
    "captions": Captioning,
    "neighbours": Neighbours,
}
GIVEN: Mapping[Form, str] = {"text": "text", "pairs": "pairs", "images": "images with captions"}
HINTS: Mapping[Form, str] = {
    "text": "",
    "pairs": ", or give pairs with --pairs",
    "images": ", or give images with --images",
}


def objective_for(config: ModelConfig, form: Form) -> Objective:
    """What a model of this kind is trained to do, if the data allows it."""
    if config.form != form:
        raise RegardError(
            f"a model that {SHORT[config.task]} learns from {GIVEN[config.form]}, not from "
            f"{GIVEN[form]}; choose another with --model (`regard models` lists them)"
            f"{HINTS[config.form]}"
        )
    if config.unlearnable:
        raise RegardError(config.unlearnable)
    return OBJECTIVES[config.task]()


def loss(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """The summed cross-entropy of logits (rows, positions, vocabulary) in nats; a scalar."""
    return F.cross_entropy(
        logits.flatten(0, 1).float(),
        targets.flatten(),
        ignore_index=IGNORE,
        reduction="sum",
        label_smoothing=smoothing,
    )


def activation_penalty(hidden: Tensor, criterion: Criterion) -> Tensor:
    """What large and changing hidden vectors (rows, positions, width) add to a summed loss.

    Activation regularisation and its temporal form (Merity 2017: 2 and 1), of vectors as the output
    matrix reads them; a scalar.
    """
    found = criterion.ar_alpha * hidden.square().mean(-1).sum()
    return found + criterion.tar_beta * hidden.diff(dim=1).square().mean(-1).sum()
