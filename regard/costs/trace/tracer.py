"""A model's operations, written down while it runs without numbers.

Every operation of torch, of a pass, of its way back and of the optimizer, becomes a `Record`: what
it costs (`rules.py`), where in the module tree it was asked for, and in which phase of the job. An
operation of the way back stands where the one stands that it is the derivative of.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from regard.costs.trace import rules
from regard.costs.trace.allowed_pairs import allowed_pairs
from regard.costs.trace.fake_device import FakeDevice, Kind
from regard.costs.trace.memory import Kept, Memory, Place
from regard.costs.trace.values import WHOLE, Values
from regard.errors import RegardError
from regard.models.masks import AttentionMask, Combined, Documents, Mask, Padding, QueryKeyRange
from regard.models.transformer.attention import Attend

ALL = Fraction(1)
ASIDE = "aside"  # the phase of what is no part of a job
MATRICES = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")


@dataclass(frozen=True, slots=True)
class Record:
    """One operation."""

    name: str  # as torch calls it: aten::addmm
    place: str  # of the module that asked for it
    phase: str
    products: int  # operations of matrix products; pairs that a mask hides are not counted
    executed: int  # the same as the kernel does them: all pairs of a table, scores again going back
    others: int  # operations that are no products
    reads: tuple[Place, ...]
    writes: tuple[Place, ...]
    shape: tuple[int, ...]  # of a product: (times, rows, inner, columns); see `_shape`
    dtype: torch.dtype
    turned: bool = False  # a product whose first factor lies by columns: a weight's gradient
    calls: int = 1  # of torch since the operation before, this one and mere views
    modules: int = 0  # that were entered since then

    @property
    def operations(self) -> int:
        return self.products + self.others

    @property
    def read(self) -> int:
        return sum(place.bytes for place in self.reads)

    @property
    def written(self) -> int:
        return sum(place.bytes for place in self.writes)


@dataclass(frozen=True)
class Origin:
    """Where an operation stands, and which share of its pairs a mask lets through."""

    place: str
    share: Fraction
    triangle: bool  # whether the kernel itself leaves the others out


NOWHERE = Origin("", ALL, False)


class Tracer(TorchDispatchMode):
    """Writes down what happens to meta tensors while it is entered; `tracing` sets it up."""

    def __init__(self, stand_in: FakeDevice, kept: Kept) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.records: list[Record] = []
        self.memory, self.values, self.kept = Memory(), Values(), kept
        self.stand_in = stand_in
        self.phase = "forward"
        self.stack: list[Origin] = []
        self._calls = self._modules = 0  # since the last operation
        self._origins: dict[int, Origin] = {}  # by autograd's number of an operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = self.values.result(func, args, kwargs)
        if func is torch.ops.aten._local_scalar_dense.default:
            if result is not None:
                return result
            if args[0].dtype in WHOLE:  # of tokens, too many to be held; they are all 0
                return 0
            raise RegardError("this model's path depends on numbers, and a trace has none")
        out = _run(func, args, kwargs, result)
        if result is not None:
            self.values.note(out, result)
        self._write_down(func, args, kwargs, out)
        return out

    def _write_down(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        origin = self._origin()
        self._calls += 1
        given, back = rules.tensors((args, kwargs)), rules.tensors(out)
        if not any(tensor.is_meta for tensor in (*given, *back)):
            return
        before = {self.memory.number(tensor) for tensor in given}
        name, changed = func._schema.name, _changed(func, args, kwargs)
        same = all(self.memory.number(tensor) in before for tensor in back)
        if (same and not changed and back) or name in rules.EMPTY or not (given or back):
            return  # another view, or room
        needed, executed = rules.products(name, args, out)
        others = rules.others(name, args, given, back)
        share = origin.share
        if share != ALL:
            others = int(others * share) if origin.triangle else others
            executed = int(executed * share) if origin.triangle else executed
            needed = int(needed * share)
        self.records.append(
            Record(
                name,
                origin.place,
                self.phase,
                needed,
                executed,
                others,
                tuple(self._reads(name, given, changed, back)),
                tuple(self._writes(name, given, changed, back)),
                _shape(name, args, out),
                _dtype(given, back),
                _turned(name, args),
                self._calls,
                self._modules,
            )
        )
        self._calls = self._modules = 0

    def _origin(self) -> Origin:
        """Where we are: in a module, or in the derivative of what was asked for in one."""
        now = self.stack[-1] if self.stack else NOWHERE
        node = torch._C._current_autograd_node()
        if node is not None and not self.stack:
            return self._origins.get(node._sequence_nr(), NOWHERE)
        # The node of an operation is made just before it runs: the last one is its own.
        self._origins.setdefault(torch.autograd._get_sequence_nr() - 1, now)
        return now

    def _reads(
        self, name: str, given: Sequence[Tensor], changed: set[int], back: Sequence[Tensor]
    ) -> Iterator[Place]:
        seen: set[Place] = set()
        for i, tensor in enumerate(given):
            size = rules.touched(tensor)
            if name in rules.LOOKUPS and i == 0:
                size = min(size, max(map(rules.touched, back), default=size))
            if id(tensor) in changed and (name in rules.FRESH or name in rules.PLACED):
                continue
            place = self.memory.place(tensor, size)
            if place not in seen:
                seen.add(place)
                yield place

    def _writes(
        self, name: str, given: Sequence[Tensor], changed: set[int], back: Sequence[Tensor]
    ) -> Iterator[Place]:
        for tensor in given:
            if id(tensor) in changed:
                size = rules.touched(tensor)
                if name in rules.PLACED:
                    size = min(size, rules.touched(given[-1]))
                yield self.memory.place(tensor, size)
        if not changed:
            for tensor in back:
                yield self.memory.place(tensor, rules.touched(tensor))

    # Attention

    def entered(self, name: str) -> Callable[..., None]:
        """A hook that says which module is running."""

        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            above = self.stack[-1] if self.stack else NOWHERE
            share, triangle = above.share, above.triangle
            if isinstance(module, Attend):
                share, triangle = self._share(module, *args, **kwargs)
            elif name.endswith((".similarity.query", ".similarity.key")):
                share = ALL  # of queries alone, and of keys
            self.stack.append(Origin(name, share, triangle))
            self._modules += 1

        return enter

    def left(self, module: nn.Module, args: Any, output: Any) -> None:
        """A hook for its end."""
        self.stack.pop()

    def _share(
        self, module: Attend, queries: Tensor, keys: Tensor, values: Tensor, over: Any = None
    ) -> tuple[Fraction, bool]:
        """Which share of all pairs the mask lets meet, and whether the kernel knows it."""
        before, self.phase = self.phase, ASIDE
        overlay = module.overlay(queries, keys, over)
        self.phase = before
        pairs = allowed_pairs(self._known_mask(overlay.mask), self._known_span(overlay))
        span = overlay.span
        return Fraction(pairs, span.rows * span.queries * span.keys), overlay.triangle

    def _known_span(self, overlay: AttentionMask) -> QueryKeyRange:
        span = overlay.span
        return QueryKeyRange(self._known(span.positions), span.rows, span.keys, span.first)

    def _known_mask(self, mask: Mask | None) -> Mask | None:
        """A mask with numbers in it."""
        match mask:
            case Padding(lengths=lengths):
                return Padding(self._known(lengths))
            case Documents(ids=ids):
                return Documents(self._known(ids))
            case Combined(masks=masks):
                parts = (self._known_mask(part) for part in masks)
                return Combined(tuple(part for part in parts if part is not None))
        return mask

    def _known(self, tensor: Tensor) -> Tensor:
        found = self.values.of(tensor)
        if found is None:
            raise RegardError("a mask's lengths and documents must be given as numbers to count")
        return found


def _run(func: Any, args: Any, kwargs: Any, result: Any) -> Any:
    try:
        return func(*args, **kwargs)
    except (NotImplementedError, RuntimeError):
        if result is None:
            raise
        # How much comes out depends on the numbers (`nonzero`), and they are known.
        return tree_map(lambda t: torch.empty_like(t, device="meta"), result)


@cache
def _written(func: Any) -> tuple[tuple[int, str], ...]:
    """Which arguments an operation changes."""
    listed = enumerate(func._schema.arguments)
    return tuple((i, a.name) for i, a in listed if a.alias_info and a.alias_info.is_write)


def _changed(func: Any, args: Any, kwargs: Any) -> set[int]:
    """The tensors that an operation changes, by `id`."""
    found: set[int] = set()
    for i, name in _written(func):
        value = args[i] if i < len(args) else kwargs.get(name)
        found |= {id(tensor) for tensor in rules.tensors(value)}
    return found


def _dtype(given: Sequence[Tensor], back: Sequence[Tensor]) -> torch.dtype:
    floats = [t.dtype for t in (*back, *given) if t.is_floating_point()]
    return floats[0] if floats else torch.int64


def _shape(name: str, args: Any, out: Any) -> tuple[int, ...]:
    """The sizes that decide how fast a product is: (times, rows, inner, columns).

    Of attention (heads of all rows, queries, width, keys), of a recurrence (steps, rows, hidden,
    gates, width).
    """
    if name in MATRICES:
        a, b = [arg for arg in args if isinstance(arg, Tensor)][-2:]
        times = len(a) if a.dim() == 3 else 1
        return times, a.shape[-2], a.shape[-1], b.shape[-1]
    if name == "aten::convolution":
        weight = args[1]
        return 1, out.numel() // out.shape[1], weight[0].numel(), len(weight)
    if name == "aten::convolution_backward":
        grad, weight = args[0], args[2]
        return 1, grad.numel() // grad.shape[1], weight[0].numel(), len(weight)
    if name.startswith("regard::recurrence"):
        first = int(name.endswith("_backward"))  # behind the gradient
        x, weights = args[first], args[first + 2]
        rows, steps, width = x.shape
        gates, hidden = weights[1].shape
        return steps, rows, hidden, gates, width
    if name in rules.ATTENTION:
        parts = [arg for arg in args if isinstance(arg, Tensor)]
        q, k = parts[1:3] if name.endswith("_backward") else parts[:2]
        return q.shape[0] * q.shape[1], q.shape[2], q.shape[3], k.shape[2]
    return ()


def _turned(name: str, args: Any) -> bool:
    """Whether the first factor of a product lies by columns."""
    if name not in MATRICES:
        return False
    first = [arg for arg in args if isinstance(arg, Tensor)][-2]
    return first.stride(-1) != 1 and first.stride(-2) == 1


@contextmanager
def tracing(
    module: nn.Module, kind: Kind = "cpu", *, written_out: bool = False, root: str = ""
) -> Iterator[Tracer]:
    """Write down what a module on the meta device does, as on a device of this kind."""
    stand_in = FakeDevice(kind, written_out)
    tracer = Tracer(stand_in, Kept(module.parameters()))
    stand_in.read, stand_in.tell = tracer.values.of, tracer.values.tell
    with ExitStack() as stack:
        for name, part in module.named_modules():
            enter = tracer.entered(name or root)
            stack.callback(part.register_forward_pre_hook(enter, with_kwargs=True).remove)
            # Always: what is computed again for the way back stops when it has what it wants.
            left = part.register_forward_hook(tracer.left, always_call=True)
            stack.callback(left.remove)
        tracer.memory.use(module.parameters(), "weights")
        stack.enter_context(tracer)
        stack.enter_context(stand_in)
        stack.enter_context(saved_tensors_hooks(tracer.kept.pack, tracer.kept.unpack))
        yield tracer


@dataclass(frozen=True)
class Total:
    """What some operations cost together."""

    products: int
    others: int
    read: int
    written: int
    least_read: int  # if they were one kernel: what comes in, once
    least_written: int  # and what goes out

    @property
    def operations(self) -> int:
        return self.products + self.others


def total(records: Sequence[Record], among: Sequence[Record], alive: Iterable[int]) -> Total:
    """Sum up some operations among all of a trace, after which the storages `alive` were there."""
    chosen = {id(record) for record in records}
    made: set[int] = set()
    read: dict[int, set[Place]] = {}
    written: dict[int, set[Place]] = {}
    for record in records:
        for place in record.reads:
            if place.storage not in made:
                read.setdefault(place.storage, set()).add(place)
        for place in record.writes:
            made.add(place.storage)
            written.setdefault(place.storage, set()).add(place)
    wanted = set(alive) | {place.storage for r in among if id(r) not in chosen for place in r.reads}
    return Total(
        sum(r.products for r in records),
        sum(r.others for r in records),
        sum(r.read for r in records),
        sum(r.written for r in records),
        sum(place.bytes for places in read.values() for place in places),
        sum(max(p.bytes for p in places) for s, places in written.items() if s in wanted),
    )
