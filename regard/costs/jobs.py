"""What a model is asked to do, done on the meta device: a training step, reading, writing.

Nothing here knows an architecture. A step of training is the loop's own (`training/step.py`);
reading and writing are calls of the protocol.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.costs.trace.fake_device import Kind
from regard.costs.trace.memory import Use
from regard.costs.trace.tracer import ASIDE, Record, Total, Tracer, total, tracing
from regard.costs.trace.values import MOST
from regard.data.batch import Batch
from regard.errors import RegardError
from regard.models.config import ModelConfig
from regard.models.construction import build
from regard.models.network import BaseModel
from regard.models.protocol import Memory
from regard.training.job import recompute
from regard.training.objectives import PLAIN, Criterion, objective_for
from regard.training.optimization.optimizers import remembered
from regard.training.optimization.precision import Precision, Weights
from regard.training.settings import OptimizerSettings
from regard.training.step import TrainingStep

Model = ModelConfig | BaseModel  # by its settings, or its module on the meta device
MOST_ROWS = 1 << 22  # that are read or written at once; so many are counted in seconds


@dataclass(frozen=True)
class Shape:
    """How much is read or written at once."""

    rows: int = 1
    tokens: int = 128
    source: int = 0  # tokens of a source, where a model reads one; 0: as many as `tokens`
    lengths: tuple[int, ...] = ()  # real tokens of each row (of sources, for encoder–decoders)
    documents: tuple[tuple[int, ...], ...] = ()  # which document each position belongs to

    def __post_init__(self) -> None:
        if self.rows < 1 or self.tokens < 1 or self.source < 0:
            raise RegardError(
                f"there is nothing to count in {self.rows} rows of {self.tokens} tokens; "
                "give at least one of each"
            )


@dataclass(frozen=True)
class Counted:
    """What one job needs."""

    records: Sequence[Record]
    memory: dict[Use, int]  # bytes when most were held
    alive: frozenset[int]  # storages that are there at the end
    kept: int = 0  # bytes kept for the way back, weights not counted
    state: int = 0  # bytes of the state: a cache, hidden vectors, the last inputs
    parameters: int = 0
    weights: int = 0  # bytes of the parameters

    @property
    def total(self) -> Total:
        return total(self.records, self.records, self.alive)

    @property
    def peak(self) -> int:
        return sum(self.memory.values())

    def of(self, phase: str) -> list[Record]:
        """The operations of one phase."""
        return [record for record in self.records if record.phase == phase]


def module_of(config: ModelConfig) -> Any:
    """The module on the meta device."""
    if config.uncounted:
        raise RegardError(config.uncounted)
    return build(config, "meta")


def settings_of(model: Model) -> Any:
    """The settings of a model, given as such or as a module."""
    return model if isinstance(model, ModelConfig) else model.config


@contextmanager
def lent(model: Model, precision: Precision = "float32") -> Iterator[Any]:
    """A module on the meta device, with weights as this precision has them when it is used.

    One that is given comes back as it was: many jobs of a model are counted on one module.
    """
    module = module_of(model) if isinstance(model, ModelConfig) else model
    if precision == "bf16-weights":
        module.to(torch.bfloat16)
    try:
        yield module
    finally:
        module.to(torch.float32).train()
        module.zero_grad(set_to_none=True)
        recompute(module, wanted=False)


def numbers(tracer: Tracer, *shape: int) -> Tensor:
    """Tokens (rows, positions), all 0; what they are changes no cost."""
    with _phase(tracer, ASIDE):
        tokens = torch.zeros(*shape, dtype=torch.long, device="meta")
    if tokens.numel() <= MOST:
        tracer.values.tell(tokens, torch.zeros(*shape, dtype=torch.long))
    return tokens


@contextmanager
def _phase(tracer: Tracer, name: str) -> Iterator[None]:
    before, tracer.phase = tracer.phase, name
    try:
        yield
    finally:
        tracer.phase = before


def learning(
    weights: Weights,
    precision: Precision,
    device: torch.device,
    optimizer: OptimizerSettings | None = None,
    criterion: Criterion = PLAIN,
) -> TrainingStep:
    """The loop's step for a model, with room made for what its optimizers remember.

    On the meta device it is counted, on any other it really learns (`measured.py`).
    """
    chosen = optimizer or OptimizerSettings(learning_rate=1e-3)
    config: ModelConfig = weights.module.config  # type: ignore[assignment]
    objective = objective_for(config, config.form)
    step = TrainingStep.of(weights, objective, chosen, precision, device, criterion)
    for part in step.optimizers.parts:
        for group in part.param_groups:
            for weight in group["params"]:
                remembered(part, weight)
    return step


def train_step(
    model: Model,
    shape: Shape,
    kind: Kind = "cpu",
    precision: Precision = "float32",
    optimizer: OptimizerSettings | None = None,
    *,
    parts: int = 1,
    checkpointed: bool = False,
    criterion: Criterion = PLAIN,
) -> Counted:
    """One step of training, computed in so many parts: forward, backward, optimizer."""
    with lent(model) as module, ExitStack() as stack:
        weights = Weights(module.train(), precision)
        tracer = stack.enter_context(tracing(module, kind))
        recompute(module, checkpointed, tracer.stand_in.twice)
        memory = tracer.memory
        step = learning(weights, precision, torch.device("meta"), optimizer, criterion)
        masters = [] if weights.masters is weights.own else list(weights.masters.values())
        memory.use([*step.optimizers.tensors().values(), *masters], "optimizer")
        for noted in _note_gradients(tracer, weights.own):
            stack.callback(noted.remove)
        batch = _batch(tracer, module.config, shape)
        tracer.records.clear()
        memory.forget_peak()

        @contextmanager
        def phase(name: str) -> Iterator[None]:
            with _phase(tracer, "optimizer" if name == "gather" else name):
                yield
            if name == "gather":  # masters have their own gradients
                found = (master.grad for master in weights.masters.values())
                memory.use([grad for grad in found if grad is not None], "gradients")

        step.mixed, step.phase = partial(_mixed, tracer, precision), phase
        step.take(0, [batch] * parts, batch.valid)
        return _counted(tracer, module, ("forward", "backward", "optimizer"))


def _mixed(tracer: Tracer, precision: Precision) -> Any:
    return tracer.stand_in.mixed() if precision == "bf16" else nullcontext()


def _note_gradients(tracer: Tracer, weights: Mapping[str, Tensor]) -> list[Any]:
    """Hooks that count gradients as such from when they are made."""

    def noted(weight: Tensor) -> None:
        if weight.grad is not None:
            tracer.memory.use([weight.grad], "gradients")

    asked = [weight for weight in weights.values() if weight.requires_grad]
    return [weight.register_post_accumulate_grad_hook(noted) for weight in asked]


def _batch(tracer: Tracer, config: ModelConfig, shape: Shape) -> Batch:
    tokens = numbers(tracer, shape.rows, shape.tokens)
    source = lengths = source_lengths = documents = None
    if config.reads:
        source = _source(tracer, config, shape)
    if shape.lengths:
        given = torch.tensor(shape.lengths)
        lengths, source_lengths = (None, given) if source is not None else (given, None)
    if shape.documents:
        documents = torch.tensor(shape.documents)
    count = shape.rows * shape.tokens
    return Batch(tokens, tokens, count, count, lengths, documents, source, source_lengths)


def _counted(tracer: Tracer, module: Any, phases: tuple[str, ...], state: int = 0) -> Counted:
    records = [record for record in tracer.records if record.phase in phases]
    memory = tracer.memory
    return Counted(
        records,
        dict(memory.at_peak),
        frozenset(memory.alive),
        tracer.kept.bytes,
        state,
        sum(weight.numel() for weight in module.parameters()),
        sum(weight.nbytes for weight in module.parameters()),
    )


def read(
    model: Model,
    shape: Shape,
    kind: Kind = "cpu",
    precision: Precision = "float32",
    *,
    written_out: bool = False,
    last: bool = True,
) -> Counted:
    """Read a prompt (and a source) at once into a fresh state; an encoder just reads."""
    return write(model, shape, 0, kind, precision, written_out=written_out, last=last)


def step(
    model: Model,
    shape: Shape,
    kind: Kind = "cpu",
    precision: Precision = "float32",
    *,
    written_out: bool = False,
) -> Counted:
    """Write one token more behind `shape.tokens` that the state holds already."""
    return write(model, shape, 1, kind, precision, written_out=written_out)


def write(
    model: Model,
    shape: Shape,
    new: int,
    kind: Kind = "cpu",
    precision: Precision = "float32",
    *,
    written_out: bool = False,
    room: int = 0,
    last: bool = True,
) -> Counted:
    """Read a prompt, then write `new` tokens one by one; counted are the latter if there are any.

    The state has room for them and no more, or for `room` tokens.
    """
    rows, tokens = shape.rows, shape.tokens
    if rows > MOST_ROWS:
        raise RegardError(
            f"a state has a number for each row, and {rows:,} are too many; give at most "
            f"{MOST_ROWS:,} rows"
        )
    with (
        torch.no_grad(),
        lent(model, precision) as module,
        tracing(module.eval(), kind, written_out=written_out) as tracer,
    ):
        with _mixed(tracer, precision):
            memory = _memory(tracer, module, shape) if module.config.reads else None
            given = _begun(module, shape, room or tokens + new, last)
            state = given.get("state")
            tracer.memory.use(tensors_in(state), "cache")
            logits = module(numbers(tracer, rows, tokens), memory, **given)
        given.pop("lengths", None)
        if new:
            tracer.records.clear()
            tracer.memory.use(tensors_in(state), "cache")
            del logits
            tracer.memory.forget_peak()
        for _ in range(new):
            with _mixed(tracer, precision):  # what casts weights once lasts for one token
                logits = module(numbers(tracer, rows, 1), **given)
        held = tensors_in(state)
        tracer.memory.use(held, "cache")
        storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in held}
        return _counted(tracer, module, ("forward",), sum(storages.values()))


def _begun(module: Any, shape: Shape, room: int, last: bool) -> dict[str, Any]:
    """What goes with the tokens of a first call: a state, where a model has one, and lengths."""
    task = module.config.task
    if task == "masked":
        return {"lengths": torch.tensor(shape.lengths)} if shape.lengths else {}
    given: dict[str, Any] = {
        "state": module.start(batch_size=shape.rows, capacity=room),
        "last": last,
    }
    if shape.lengths and task == "causal":
        given["lengths"] = list(shape.lengths)
    return given


def _source(tracer: Tracer, config: ModelConfig, shape: Shape) -> Tensor:
    """What is read: tokens (rows, positions), or pictures."""
    if config.picture_shape:
        return torch.empty(shape.rows, *config.picture_shape, dtype=torch.uint8, device="meta")
    return numbers(tracer, shape.rows, shape.source or shape.tokens)


def _memory(tracer: Tracer, module: Any, shape: Shape) -> Memory:
    source = _source(tracer, module.config, shape)
    return module.encode(source, torch.tensor(shape.lengths) if shape.lengths else None)


def tensors_in(value: Any, seen: set[int] | None = None) -> list[Tensor]:
    """All tensors that a state holds, wherever in it; what was read of a source too."""
    seen = set() if seen is None else seen
    if id(value) in seen or callable(value):
        return []
    seen.add(id(value))
    if isinstance(value, Tensor):
        return [value]
    inside: Any = ()
    if isinstance(value, list | tuple):
        # Of numbers there is one for each row, and rows may be very many.
        inside = () if value and isinstance(value[0], int) else value
    elif isinstance(value, dict):
        inside = value.values()
    elif hasattr(value, "__dict__") and type(value).__module__.startswith("regard.models"):
        inside = vars(value).values()
    return [tensor for part in inside for tensor in tensors_in(part, seen)]
