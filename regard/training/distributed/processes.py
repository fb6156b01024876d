"""Many processes that train one model: who they are, what they tell each other, how they share it.

torchrun starts them. Each computes some parts of every step and all make the same update: either
every process has a copy of the model (DDP), or each holds some rows of all weights (FSDP2, see
`shares`). What they tell each other is numbers, or text as bytes: nothing is ever pickled.
"""

import functools
import hashlib
import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from regard.errors import RegardError
from regard.models.config import Ability
from regard.models.network import SequenceModule
from regard.models.transformer.attention import Attention
from regard.models.transformer.blocks import Block
from regard.training.distributed.sharding import rows
from regard.training.optimization.precision import Precision

PATIENCE = timedelta(minutes=30)  # the first process may learn a tokenizer while others wait
FAREWELL = timedelta(seconds=5)  # for asking who tells that a process is gone
GONE = re.compile(
    r"gloo/transport|connection (closed|reset) by peer|broken pipe|caused pair closure",
    re.IGNORECASE,
)
SILENT = re.compile(r"timed out|timeout", re.IGNORECASE)

T = TypeVar("T")


class Dealt(NamedTuple, Generic[T]):
    """Something that a process computes: which of all it is, and whether it counts."""

    number: int
    item: T
    counts: bool


@dataclass(frozen=True)
class Processes:
    """This process among all that train together; by default it is alone.

    All methods that exchange something must be called by all processes, in the same order, on the
    main thread.
    """

    rank: int = 0
    count: int = 1
    local: int = 0  # the rank on this machine
    kind: str = "cpu"  # of the devices they compute on
    patience: timedelta = PATIENCE  # how long one waits for another
    control: Any = field(default=None, repr=False, compare=False)  # a gloo group for small messages
    store: Any = field(default=None, repr=False, compare=False)  # where all of them met

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        return torch.device("cuda", self.local) if self.kind == "cuda" else torch.device(self.kind)

    def dealt(self, items: Iterable[T]) -> Iterator[Dealt[T]]:
        """What this process computes of `items`: every count-th, and as many as any other process.

        Where it would have one less it computes the first one again, which does not count: with
        shares every pass takes all processes.
        """
        numbered = enumerate(items)
        head: T | None = None
        while some := list(islice(numbered, self.count)):
            head = some[0][1] if head is None else head
            yield Dealt(*some[self.rank], True) if self.rank < len(some) else Dealt(0, head, False)

    def barrier(self) -> None:
        """Wait for all."""
        if self.count > 1:
            dist.barrier(group=self.control)

    def sums(self, values: Sequence[float]) -> list[float]:
        """The sum over all processes of each number."""
        totals = torch.tensor(values, dtype=torch.float64, device="cpu")
        if self.count > 1:
            dist.all_reduce(totals, group=self.control)
        return totals.tolist()

    def summed(self, tensor: Tensor) -> Tensor:
        """The same for a tensor where the models are, which nobody waits for on the way."""
        if self.count == 1:
            return tensor
        total = tensor.detach().clone()
        dist.all_reduce(total)
        return total

    def any(self, flag: bool) -> bool:
        """Whether it is so on any process."""
        return self.sums([flag])[0] > 0

    def said(self, text: str) -> str:
        """What the first process says."""
        if self.count == 1:
            return text
        mine = torch.frombuffer(bytearray(json.dumps(text).encode()), dtype=torch.uint8)
        size = torch.tensor([len(mine)], device="cpu")
        dist.broadcast(size, 0, group=self.control)
        heard = mine if self.first else torch.empty(int(size), dtype=torch.uint8, device="cpu")
        dist.broadcast(heard, 0, group=self.control)
        return json.loads(heard.numpy().tobytes())

    def agreement(self, text: str, what: str = "settings") -> None:
        """Refuse to go on unless all processes have the same text."""
        if self.count == 1:
            return
        digest = hashlib.sha256(json.dumps(text).encode()).digest()
        mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
        all_of_them = [torch.empty_like(mine) for _ in range(self.count)]
        dist.all_gather(all_of_them, mine, group=self.control)
        others = [r for r, one in enumerate(all_of_them) if not one.equal(all_of_them[0])]
        if others:
            names = ", ".join(map(str, others))
            who = f"process {names} has" if len(others) == 1 else f"processes {names} have"
            raise RegardError(
                f"{who} other {what} than process 0; start all {self.count} with the same command, "
                "and let them see the same files"
            )

    def lost(self, error: BaseException | None) -> bool:
        """Whether an error means that another process is gone, or no longer answers."""
        while error is not None and self.count > 1:
            told = isinstance(error, RuntimeError) and GONE.search(str(error))
            if told or isinstance(error, dist.DistError):
                return True
            error = error.__cause__ or error.__context__
        return False

    def loss(self, error: BaseException) -> RegardError:
        """An error that `lost` another process as a sentence."""
        what = "another process of this job has ended, so this one ends too"
        if SILENT.search(str(error)):
            minutes = self.patience.total_seconds() / 60
            what = (
                f"another process of this job did not answer for {minutes:g} minutes, so this one "
                "ends (if it was only slow, raise training.timeout)"
            )
        return RegardError(
            f"{what}; what was saved is whole, and the same command goes on from there"
        )

    def one_speaks(self) -> bool:
        """Whether it is this process that tells what went wrong: the first to ask.

        One that is about to fail asks before it leaves, and the others keep quiet about having
        lost it. Where all met may be gone too; then each tells.
        """
        if self.count == 1:
            return True
        try:
            self.store.set_timeout(FAREWELL)
            speaker = self.store.compare_set("speaker", "", str(self.rank))
            return speaker == str(self.rank).encode()
        except RuntimeError:
            return True


ALONE = Processes()


class Vote:
    """One question that all processes answer once a step, and hear the result of a step later.

    So the exchange takes place while they compute.
    """

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self._cast: Tensor | None = None
        self._work: Any = None

    def cast(self, flag: bool) -> None:
        """Begin to ask; the vote before must have been looked at."""
        assert self._cast is None, "the result comes before the next vote"
        self._cast = torch.tensor([int(flag)], device="cpu")
        if self.processes.count > 1:
            group = self.processes.control
            self._work = dist.all_reduce(self._cast, dist.ReduceOp.MAX, group, async_op=True)

    def result(self) -> bool:
        """Whether any process said yes in the vote before; no, if there was none."""
        if self._cast is None:
            return False
        if self._work is not None:
            self._work.wait()
        flag, self._cast, self._work = bool(self._cast), None, None
        return flag


def replicated(part: nn.Module, processes: Processes, unused: bool) -> nn.Module:
    """A module of which every process has a copy; gradients are means over the processes.

    `unused` says that some of its weights take no part in what it computes.
    """
    if processes.count == 1:
        return part
    return DistributedDataParallel(
        part, find_unused_parameters=unused, gradient_as_bucket_view=True
    )


def sharded(module: SequenceModule, processes: Processes, precision: Precision) -> SequenceModule:
    """The module itself, each process from now on holding some rows of all weights (FSDP2).

    Every block is gathered when it computes and let go after. `forward`, `encode` and `start` then
    take all processes, also when decoding. With "bf16-weights" the shares stay in float32, what is
    gathered is bfloat16: there is no need for other masters.
    """
    # Imported here: that takes 0.8 s, which nobody else should wait for.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if processes.count == 1:
        return module
    for weight in module.parameters():
        dist.broadcast(weight.detach(), 0)
    # Inputs are not cast: they are whole numbers, and a memory would be another than its state's.
    half = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    policy = half if precision == "bf16-weights" else MixedPrecisionPolicy()
    mesh = init_device_mesh(processes.kind, (processes.count,))
    blocks = [part for part in module.modules() if isinstance(part, Block)]
    for part in (*blocks, module):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    for block in blocks:
        if hasattr(block, "cross"):
            _gather_to_read(block, block.cross)
    _enter_through(module)
    _gather_once((*blocks, module))
    # Outputs that are views must not be written to, as nobody does; torch warns at each.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    return module


def _gather_to_read(block: Block, cross: Attention) -> None:
    """Let a source be read by the block's weights also before the block itself computes."""
    read = cross.read

    def gathered(source: Tensor) -> Any:
        if rows(cross.key_value.weight) is None:  # the block is computing
            return read(source)
        with _gathered(block):
            return read(source)

    cross.read = gathered  # type: ignore[method-assign]


@contextmanager
def _gathered(part: nn.Module) -> Iterator[None]:
    shards = cast(Any, part)
    shards.unshard()
    try:
        yield
    finally:
        shards.reshard()


def _enter_through(module: SequenceModule) -> None:
    """Gather the weights outside the blocks in all that is called from outside.

    FSDP2 keeps them for the backward pass. Where none will come they are let go, else the next pass
    would compute with them though their shares had changed (as for a running mean).
    """
    from torch.distributed.fsdp import register_fsdp_forward_method

    def let_go() -> None:
        if not torch.is_grad_enabled():
            cast(Any, module).reshard()

    def entrance(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def called(*given: Any, **named: Any) -> Any:
            result = method(*given, **named)
            let_go()
            return result

        return called

    # A state is made in the numbers that gathered weights have.
    reads = ("encode",) if module.config.reads else ()
    generates = module.config.abilities & {Ability.CONTINUE, Ability.TRANSLATE}
    for name in (*(("start",) if generates else ()), *reads):
        register_fsdp_forward_method(module, name)
        setattr(module, name, entrance(getattr(module, name)))
    module.register_forward_hook(lambda *_: let_go())


def _gather_once(parts: Iterable[nn.Module]) -> None:
    """Make the tensors that are gathered into.

    The first pass would, and made without gradients, by a validation, they could never have any.
    """
    for part in parts:
        with _gathered(part):
            pass


def last_part(wrapped: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Where a part of a step is computed forward and backward: only the last exchanges gradients.

    Until then each process adds its own up; with shares these are whole gradients meanwhile.
    """
    inner = getattr(wrapped, "_orig_mod", wrapped)  # torch.compile wraps too
    if isinstance(inner, DistributedDataParallel):
        return nullcontext() if last else inner.no_sync()
    for part in (inner, *inner.children()):
        if hasattr(part, "set_requires_gradient_sync"):
            part.set_requires_gradient_sync(last)
    return nullcontext()
