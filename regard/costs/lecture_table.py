"""The lectures' table (M23), from traces: what each operation of a layer costs, exactly.

Small models are traced at several sizes, and the polynomials through what was counted are found in
`polynomials.py`; none is typed in. Beside them stands what the lectures say, O(·).

b rows, n tokens, d width, h heads, m tokens of a source, k width of a convolution. Arithmetic
counts a multiplication and an addition as 2 operations, and no pairs that a causal mask hides.
Traffic is in numbers, where each part is one kernel: what comes in once, what goes out once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import nn

from regard.costs import jobs
from regard.costs.jobs import Counted, Shape
from regard.costs.polynomials import Polynomial, fitted
from regard.costs.trace.tracer import Record, total, tracing
from regard.models.config import ModelConfig
from regard.models.registry import named

NUMBER = 4  # bytes of a number here
SIZES = {"b": (1, 2, 3), "n": (2, 3, 4, 6), "d": (8, 16, 24, 40), "h": (1, 2, 4)}
QKV, SCORES, MIX, OUTPUT, FEEDFORWARD = (
    "q, k, v projections",
    "P = softmax(QKᵀ/√d_h)",
    "heads = PV",
    "Concat·Wᵒ",
    "FFN, width 4d",
)
OTHER = "norms, residuals"
SOFTMAX = ("aten::_safe_softmax", "aten::_softmax")
# What the lectures say: of a whole sequence, then of one step; arithmetic, then traffic.
LECTURES: dict[str, tuple[str, str, str, str]] = {
    QKV: ("bnd²", "d² + 2bnd", "bd²", "d² + 2bd"),
    SCORES: ("bn²d", "2bnd + bhn²", "bnd", "bhn + bnd + bd"),
    MIX: ("bn²d", "2bnd + bhn²", "bnd", "bhn + bnd + bd"),
    OUTPUT: ("bnd²", "2bnd + d²", "bd²", "2bd + d²"),
    FEEDFORWARD: ("16bnd²", "2bnd + 8d²", "16bd²", "2bd + 8d²"),
}


@dataclass(frozen=True)
class Row:
    """A line of a table: a name, and cells."""

    name: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """A table with its title and what it means."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""


def transformer(d: int, h: int, kind: str = "decoder") -> ModelConfig:
    """One layer of a plain Transformer, without biases."""
    return _layer_of(
        "gpt2",
        kind=kind,
        context=64,
        width=d,
        heads=h,
        hidden=4 * d,
        positions="none",
        attention_bias=False,
        feedforward_bias=False,
        attention_dropout=0.0,
    )


def _layer_of(name: str, **changes: Any) -> ModelConfig:
    """One layer of a named model, with few tokens and without dropout."""
    return replace(named(name), **{"vocabulary": 8, "layers": 1, "dropout": 0.0, **changes})


def in_parts(counted: Counted) -> dict[str, list[Record]]:
    """The operations of one block, by the lectures' parts."""
    found: dict[str, list[Record]] = {name: [] for name in (*LECTURES, OTHER)}
    mixing = False  # whether the softmax is behind us
    for record in counted.records:
        _, inside, place = record.place.partition("blocks.0")
        if not inside:
            continue
        if place.startswith(".attention.attend"):
            found[MIX if mixing else SCORES].append(record)
            mixing = mixing or record.name in SOFTMAX
        elif place.startswith(".attention.query_key_value") or (
            place == ".attention" and not mixing
        ):
            found[QKV].append(record)
        elif place == ".attention" or place.startswith(".attention.output"):
            found[OUTPUT].append(record)
        elif place.startswith(".feedforward") and "norm" not in place:
            found[FEEDFORWARD].append(record)
        else:
            found[OTHER].append(record)
    return found


def measured(counted: Counted) -> dict[str, int]:
    """Arithmetic and traffic of each part of a block."""
    found: dict[str, int] = {}
    for name, records in in_parts(counted).items():
        whole = total(records, counted.records, counted.alive)
        found[f"{name} arithmetic"] = whole.products
        found[f"{name} traffic"] = (whole.least_read + whole.least_written) // NUMBER
    return found


def block(job: Callable[..., Counted]) -> dict[str, Polynomial]:
    """The polynomials of each part of a block in b, n, d and h, doing one job."""

    def count(at: Mapping[str, int]) -> Mapping[str, int]:
        config = transformer(at["d"], at["h"])
        return measured(job(config, Shape(at["b"], at["n"]), written_out=True))

    return fitted(count, SIZES)


Found = Mapping[str, Polynomial]


def _blocks(whole: Found, one: Found) -> Section:
    rows = []
    for name, said in LECTURES.items():
        cells = []
        for found, (work, moved) in ((whole, said[:2]), (one, said[2:])):
            cells += [
                f"{found[f'{name} arithmetic']}  O({work})",
                f"{found[f'{name} traffic']}  O({moved})",
            ]
        rows.append(Row(name, tuple(cells)))
    sums = [
        str(sum((found[f"{name} {what}"] for name in LECTURES), Polynomial({})))
        for found in (whole, one)
        for what in ("arithmetic", "traffic")
    ]
    rows.append(Row("together", tuple(sums)))
    return Section(
        "One block of a decoder",
        (
            "operation",
            "n tokens: arithmetic",
            "traffic",
            "one step after n: arithmetic",
            "traffic",
        ),
        tuple(rows),
        "A step sees n + 1 keys, its own too.",
    )


def arithmetic(counted: Counted, *places: str) -> int:
    """Products of what stands below some places."""
    return sum(r.products for r in counted.records if r.place.startswith(places))


def _regimes(whole: Found) -> Section:
    together = sum((whole[f"{name} arithmetic"] for name in LECTURES), Polynomial({}))
    rows = []
    for name, variable, sizes in (
        ("n ≫ d", "n", {"b": 1, "n": 65536, "d": 512, "h": 8}),
        ("d ≫ n", "d", {"b": 1, "n": 128, "d": 8192, "h": 64}),
    ):
        left = together.largest(variable)
        share = float(left(**sizes) / together(**sizes))
        at = f"n = {sizes['n']:,}, d = {sizes['d']:,}"
        rows.append(Row(name, (str(left), f"{share:.1%} of all at {at}")))
    return Section(
        "Which term is left of a block's arithmetic", ("", "left", "so much"), tuple(rows)
    )


def _caches() -> Section:
    @cache
    def again(rows: int, tokens: int, d: int) -> int:
        return arithmetic(jobs.read(transformer(d, 1), Shape(rows, tokens)), "decoder.blocks")

    def count(at: Mapping[str, int]) -> Mapping[str, int]:
        rows, n, d = at["b"], at["n"], at["d"]
        steps = jobs.write(transformer(d, 1), Shape(rows, 1), n - 1)
        return {
            "with": again(rows, 1, d) + arithmetic(steps, "decoder.blocks"),
            "without": sum(again(rows, tokens, d) for tokens in range(1, n + 1)),
            "held": steps.state // NUMBER,
        }

    sizes = {"b": (1, 2, 3), "n": (2, 3, 4, 5, 7), "d": (8, 16, 24, 40)}
    found = fitted(count, sizes)
    return Section(
        "A block that writes n tokens one by one",
        ("", "arithmetic", "numbers kept"),
        (
            Row("with the cache", (str(found["with"]), str(found["held"]))),
            Row("without", (str(found["without"]), "0")),
        ),
    )


def _pairs() -> Section:
    def count(at: Mapping[str, int]) -> Mapping[str, int]:
        config = transformer(at["d"], 1, "encoder-decoder")
        shape = Shape(at["b"], at["n"], at["m"])
        counted = jobs.read(config, shape)
        return {
            "encoder": arithmetic(counted, "encoder.blocks"),
            "decoder": arithmetic(counted, "decoder.blocks"),
        }

    sizes = {"b": (1, 2, 3), "n": (2, 3, 4, 6), "m": (2, 3, 5, 7), "d": (8, 16, 24, 40)}
    found = fitted(count, sizes)
    return Section(
        "Encoder–decoder, a layer each: m tokens read, n written  O(n²d + nd² + m²d + md² + nmd)",
        ("", "arithmetic"),
        tuple(Row(name, (str(polynomial),)) for name, polynomial in found.items()),
    )


def _layers() -> Section:
    """Other layers of the same width, and their states."""

    def recurrent(cell: str) -> Callable[[Mapping[str, int]], Mapping[str, int]]:
        def count(at: Mapping[str, int]) -> Mapping[str, int]:
            d = at["d"]
            config = _layer_of(cell, width=d, hidden=d)
            return _layer(config, Shape(at["b"], at["n"]), "decoder")

        return count

    def convolution(at: Mapping[str, int]) -> Mapping[str, int]:
        config = _layer_of(
            "conv", width=at["d"], kernel=at["k"], dilation_growth=1, dilation_cycle=0
        )
        return _layer(config, Shape(at["b"], at["n"]), "decoder")

    def attention(at: Mapping[str, int]) -> Mapping[str, int]:
        config = transformer(at["d"], 1)
        return _layer(config, Shape(at["b"], at["n"]), "decoder.blocks.0.attention")

    few = {v: SIZES[v] for v in ("b", "n", "d")}
    kinds: list[tuple[str, Callable[..., Mapping[str, int]], Mapping[str, Sequence[int]]]] = [
        ("self-attention", attention, few),
        *((f"recurrent, {cell}", recurrent(cell), few) for cell in ("elman", "gru", "lstm")),
        ("convolution, gated", convolution, {**few, "k": (2, 3, 4)}),
        ("fully connected over all tokens", _connected, {**few, "d": (2, 3, 4, 5)}),
    ]
    rows = []
    for name, count, sizes in kinds:
        found = fitted(count, sizes)
        cells = (found["parameters"], found["arithmetic"], found["state"])
        rows.append(Row(name, tuple(map(str, cells))))
    return Section(
        "Layers of width d over n tokens",
        ("", "parameters", "arithmetic", "numbers kept between steps"),
        tuple(rows),
        "A recurrent layer takes its n steps one after another; the others take all at once.",
    )


def _layer(config: ModelConfig, shape: Shape, place: str) -> dict[str, int]:
    counted = jobs.read(config, shape)
    held = jobs.step(config, replace(shape, tokens=shape.tokens - 1)).state
    module = jobs.module_of(config).get_submodule(place)
    return {
        "parameters": sum(weight.numel() for weight in module.parameters()),
        "arithmetic": arithmetic(counted, place),
        "state": held // NUMBER,
    }


def _connected(at: Mapping[str, int]) -> Mapping[str, int]:
    """One linear layer that reads all tokens of a row at once and writes all of them."""
    wide = at["n"] * at["d"]
    with torch.device("meta"):
        module = nn.Linear(wide, wide, bias=False)
    with torch.no_grad(), tracing(module) as tracer:
        module(torch.empty(at["b"], wide, device="meta"))
    products = sum(record.products for record in tracer.records)
    return {"parameters": module.weight.numel(), "arithmetic": products, "state": 0}


def sections() -> list[Section]:
    """All tables, traced now."""
    whole, one = block(jobs.read), block(jobs.step)
    return [_blocks(whole, one), _regimes(whole), _caches(), _pairs(), _layers()]


def markdown(tables: Sequence[Section]) -> str:
    """The tables as a page shows them."""
    lines: list[str] = []
    for section in tables:
        lines += [f"**{section.title}**", "", f"| {' | '.join(section.columns)} |"]
        lines.append("|---" * len(section.columns) + "|")
        lines += [f"| {' | '.join((row.name, *row.cells))} |" for row in section.rows]
        lines += ["", *((section.note, "") if section.note else ())]
    return "\n".join(lines).rstrip() + "\n"
