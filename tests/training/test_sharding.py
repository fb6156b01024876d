import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from many_processes import together
from safetensors.torch import save_file

from regard.errors import RegardError
from regard.training.distributed.sharding import Pieces, local, rows, whole

SHAPES = [(1,), (2, 3), (3,), (4, 2), (5, 2), (7,), (8, 1), (9, 2)]


def numbers(shape, start=0):
    return torch.arange(start, start + torch.Size(shape).numel()).reshape(shape).float()


class Holder(torch.nn.Module):
    """Weights of many sizes, cut by FSDP2 itself."""

    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ParameterList(numbers(shape) for shape in SHAPES)

    def forward(self, x):
        return sum((w.sum() for w in self.weights), x)


def cut(processes):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (processes.count,))
    return list(fully_shard(Holder(), mesh=mesh).weights), mesh


def shares(processes):
    """For each weight: its rows, and whether torch and what is held, gathered, filled agree."""
    from torch.distributed.tensor import DTensor, Replicate
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    found = []
    weights, mesh = cut(processes)
    for shape, weight in zip(SHAPES, weights, strict=True):
        size, offset = compute_local_shape_and_global_offset(shape, mesh, weight.placements)
        truth = offset[0], offset[0] + size[0]
        right = [
            rows(weight) == truth,
            local(weight).equal(numbers(shape)[slice(*truth)]),
            not local(weight).requires_grad,
            whole(weight).equal(numbers(shape)),
        ]
        found.append((rows(weight), right))
    same = DTensor.from_local(numbers((4, 2)), mesh, [Replicate()])
    assert rows(same) is None
    assert whole(same).equal(numbers((4, 2)))
    return found


@pytest.mark.parametrize("count", [2, 4])
def test_shares_are_cut_as_fsdp_cuts(count):
    found = together(count, shares)
    for number, shape in enumerate(SHAPES):
        held = [one[number][0] for one in found]
        chunks = [len(chunk) for chunk in torch.arange(shape[0]).chunk(count)]
        assert [last - first for first, last in held] == chunks + [0] * (count - len(chunks))
        for one in found:
            assert one[number][1] == [True] * 4


def test_a_whole_tensor_is_all_its_rows():
    weight = torch.nn.Parameter(numbers((3, 2)))
    assert rows(weight) is None
    assert local(weight) is weight
    assert whole(weight) is weight


# Files


def kept(processes, folder):
    """Write this process's rows, as a checkpoint does."""
    weights, _ = cut(processes)
    name = f"part-{processes.rank}.safetensors"
    named = {f"w{number}": weight for number, weight in enumerate(weights)}
    save_file({n: local(w).contiguous().clone() for n, w in named.items()}, folder / name)
    return name, {
        n: {"shape": list(w.shape), "first": rows(w)[0], "last": rows(w)[1]}
        for n, w in named.items()
    }


def restored(processes, tables):
    weights, _ = cut(processes)
    pieces = Pieces.of(tables)
    right = []
    for number, weight in enumerate(weights):
        local(weight).copy_(pieces.read(f"w{number}", *rows(weight)))
        right.append(whole(weight).equal(numbers(SHAPES[number])))
        right.append(local(weight).equal(pieces.like(f"w{number}", weight)))
    return right


@pytest.mark.parametrize(("writers", "readers"), [(4, 2), (2, 4)])
def test_any_number_of_processes_reads_what_any_number_wrote(tmp_path, writers, readers):
    written = json.loads(json.dumps(together(writers, kept, tmp_path)))
    tables = {tmp_path / name: table for name, table in written}
    for right in together(readers, restored, tables):
        assert right == [True] * 2 * len(SHAPES)
    alone = Pieces.of(tables)
    for number, shape in enumerate(SHAPES):
        assert alone.read(f"w{number}").equal(numbers(shape))


def stored(folder: Path, cuts: list[tuple[int, int]], shape=(10, 2)) -> dict[Path, Any]:
    """Files that hold some rows of one tensor each."""
    tables = {}
    for number, (first, last) in enumerate(cuts):
        path = folder / f"{number}.safetensors"
        save_file({"w": numbers(shape)[first:last].clone()}, path)
        tables[path] = {"w": {"shape": list(shape), "first": first, "last": last}}
    return tables


@given(st.lists(st.integers(0, 10), max_size=4), st.integers(0, 10), st.integers(0, 10))
def test_rows_are_joined_from_wherever_they_are(tmp_path_factory, cuts, one, other):
    ends = [0, *sorted(cuts), 10]
    folder = tmp_path_factory.mktemp("pieces")
    tables = stored(folder, list(pairwise(ends)))
    first, last = sorted((one, other))
    assert Pieces.of(tables).read("w", first, last).equal(numbers((10, 2))[first:last])


def test_only_the_rows_asked_for_are_read(tmp_path):
    pieces = Pieces.of(stored(tmp_path, [(0, 4), (4, 8), (8, 10)]))
    asked = []

    class Watched:
        def __init__(self, path, opened):
            self.path, self.opened = path, opened

        def get_slice(self, name):
            view, number = self.opened.get_slice(name), int(self.path.stem)

            class View:
                def __getitem__(self, place):
                    asked.append((number, place.start, place.stop))
                    return view[place]

            return View()

    pieces._opened = {path: Watched(path, one) for path, one in pieces._opened.items()}
    assert pieces.read("w", 3, 6).equal(numbers((10, 2))[3:6])
    assert asked == [(0, 3, 4), (1, 0, 2)]


def test_what_no_table_mentions_is_whole(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({"step": torch.tensor(4.0), "w": numbers((3, 2)), "none": torch.zeros(0, 2)}, path)
    pieces = Pieces.of({path: {}})
    assert sorted(pieces.names()) == ["none", "step", "w"]
    assert pieces.read("step") == 4
    assert pieces.like("step", torch.tensor(0.0)) == 4
    assert pieces.read("w", 1, 2).equal(numbers((3, 2))[1:2])
    assert pieces.read("none").shape == (0, 2)
    assert pieces.shape("w") == (3, 2)


def test_kinds_of_numbers_are_kept(tmp_path):
    tables = stored(tmp_path, [(0, 5), (5, 10)])
    for path in tables:
        save_file({"w": numbers((5, 2)).to(torch.bfloat16)}, path)
    assert Pieces.of(tables).read("w", 4, 6).dtype == torch.bfloat16


Change = Callable[[dict[Path, Any], Path], Any]


def said(**changes) -> Change:
    """A change of what the second file's table says."""

    def change(tables, second):
        tables[second]["w"] |= changes

    return change


def saved(tensor) -> Change:
    """A change of what the second file holds."""
    return lambda tables, second: save_file({"w": tensor}, second)


WRONG: list[tuple[Change, str]] = [
    (said(first=-5), "its table must say shape, first and last in whole numbers"),
    (said(first=4.0), "its table must say"),
    (said(first=True, last=6), "its table must say"),
    (said(last=None), "its table must say"),
    (said(last=10**5000), "its table must say"),
    (said(shape=[10**30, 2]), "its table must say"),
    (said(shape="10"), "its table must say"),
    (said(shape=[]), "its table must say"),
    (said(shape=[10, -2]), "its table must say"),
    (said(last=11), "rows 5 to 11 are not among its 10"),
    (said(first=9, last=8), "rows 9 to 8 are not among its 10"),
    (said(last=2**61, shape=[2**61, 2]), "is not the shape of rows 5 to"),
    (said(first=6), r"\(5, 2\) is not the shape of rows 6 to 10 of \(10, 2\)"),
    (said(shape=[10, 3]), "is not the shape of rows"),
    (said(first=3, last=8), "rows 3 to 5 are in two files"),
    (said(first=5, last=10, shape=[11, 2]), "do not agree on its shape"),
    (saved(numbers((5, 2)).double()), "do not agree on its shape and kind of numbers"),
    (saved(numbers((5, 3))), "is not the shape of rows"),
    (lambda tables, second: tables.pop(second), "rows 5 to 10 are in no file"),
    (lambda tables, second: tables.pop(next(iter(tables))), "rows 0 to 5 are in no file"),
    (lambda tables, second: tables[second].clear(), "do not agree on its shape"),
    (lambda tables, second: tables.update({second: [1]}), "must be an object, not a list"),
    (lambda tables, second: tables[second].update(w=3), "its table must say"),
    (
        lambda tables, second: tables[second].update(v=tables[second]["w"]),
        "is said to hold tensor v, which it does not",
    ),
    (lambda tables, second: second.unlink(), "1.safetensors is missing"),
    (lambda tables, second: second.write_bytes(b"nothing"), "1.safetensors is damaged or cut off"),
    (lambda tables, second: (second.unlink(), second.mkdir()), "it is not a regular file"),
]


@pytest.mark.parametrize(("change", "sentence"), WRONG, ids=range(len(WRONG)))
def test_rows_that_cannot_be_are_one_sentence_each(tmp_path, change, sentence):
    tables = stored(tmp_path, [(0, 5), (5, 10)])
    assert Pieces.of(tables).read("w").equal(numbers((10, 2)))
    change(tables, tmp_path / "1.safetensors")
    with pytest.raises(RegardError, match=sentence) as caught:
        Pieces.of(tables)
    assert all(len(line) < 300 for line in str(caught.value).splitlines())


def test_asking_for_what_is_not_there_is_one_sentence(tmp_path):
    pieces = Pieces.of(stored(tmp_path, [(0, 10)]))
    with pytest.raises(RegardError, match="holds no tensor v"):
        pieces.read("v")
    for first, last in [(-1, 3), (3, 11), (5, 4)]:
        with pytest.raises(RegardError, match="were asked for; it has 10"):
            pieces.read("w", first, last)
    with pytest.raises(RegardError, match=r"has shape \(10, 2\) in .*, but \(10, 3\) is needed"):
        pieces.like("w", torch.zeros(10, 3))
    with pytest.raises(RegardError, match="holds no tensor w"):
        Pieces.of({}).read("w")
