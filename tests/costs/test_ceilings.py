"""Devices: rates over grids, files that others may have written, datasheets."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.costs.device import calibrate
from regard.costs.device.ceilings import Device, Grid, device_named, of_sheet
from regard.errors import RegardError
from regard.training.datasheets import SHEETS

GRID = Grid(((1, 10, 100), (4, 16)), (1.0, 2.0, 10.0, 20.0, 100.0, 200.0))


def test_a_grid_gives_its_own_points_and_the_middle_between_them():
    assert GRID.at(10, 16) == pytest.approx(20.0)
    assert GRID.at(10**0.5, 4) == pytest.approx(10**0.5)  # even in logarithms
    assert GRID.at(1, 8) == pytest.approx(2**0.5)
    assert GRID.best == 200.0


@given(st.floats(0.001, 1e6), st.floats(0.001, 1e6))
def test_beyond_its_sizes_a_grid_stays_what_it_is(a, b):
    assert 1.0 - 1e-9 <= GRID.at(a, b) <= 200.0 + 1e-9


def test_a_grid_of_nonsense_is_refused():
    for axes, rates in ((((1, 2),), (1.0,)), (((2, 1),), (1.0, 1.0)), (((1,),), (0.0,))):
        with pytest.raises(RegardError, match="grid"):
            Grid(axes, rates)


def test_a_device_comes_back_from_its_file():
    device = of_sheet("h200")
    again = Device.of_json(json.loads(json.dumps(device.to_json())), "file")
    assert again.products["bfloat16"].best == pytest.approx(device.products["bfloat16"].best)
    assert (again.name, again.kind, again.memory) == (device.name, device.kind, device.memory)


def test_files_that_are_no_calibrations_are_told():
    good = device_named("cpu-2").to_json()
    wrong = [
        {},
        {**good, "format": 99},
        {**good, "kind": "abacus"},
        {**good, "traffic": {}},
        {**good, "products": {"float32": {"axes": [[1]], "rates": [-1]}}},
        {**good, "products": 3},
    ]
    for found in wrong:
        with pytest.raises(RegardError, match="calibration"):
            Device.of_json(json.loads(json.dumps(found)), "file")


def test_devices_have_names(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    for name in SHEETS:
        assert device_named(name).kind == "cuda"
    assert "datasheet" in device_named("a100").source or "measured" in device_named("a100").source
    assert device_named("cpu").kind == "cpu"
    with pytest.raises(RegardError, match="h200"):
        device_named("h20")
    own = device_named("cpu-2").to_json() | {"name": "mine", "source": "measured here"}
    (tmp_path / "devices").mkdir()
    (tmp_path / "devices" / "mine.json").write_text(json.dumps(own))
    assert device_named("mine").source == "measured here"
    assert device_named(str(tmp_path / "devices" / "mine.json")).name == "mine"


def test_what_was_not_tried_takes_the_rate_of_the_nearest_smaller_shape():
    tried = []

    def rate(a, b):
        tried.append((a, b))
        return 1e9

    grid = calibrate._grid(((1, 10), (1, 10**9)), rate, lambda a, b: a * b)
    assert (10, 10**9) not in tried
    assert grid.rates == (1e9,) * 4


def test_samples_are_told_apart_and_their_bytes_are_a_traces():
    moved = dict(calibrate._moved(512 * 100))
    size = 512 * 100 * 4
    assert moved["aten::add"] == 3 * size
    assert moved["aten::copy_"] == moved["aten::gelu"] == 2 * size
    assert moved["aten::_fused_adamw_"] == pytest.approx(8 * size, rel=0.01)
    assert len(moved) == len(list(calibrate._samples(512, torch.device("meta"))))


def test_a_cpu_that_nobody_measured_is_as_fast_as_it_has_threads():
    two = device_named("cpu-2")
    for name, factor in (("cpu-4", 2), ("cpu-16", 8)):
        found = device_named(name)
        assert (found.name, found.kind) == (name, "cpu")
        assert "guess" in found.source
        assert found.products["float32"].best == pytest.approx(
            factor * two.products["float32"].best
        )
    assert "guess" not in device_named("cpu-1").source + two.source
    with pytest.raises(RegardError, match="no device is called 'cpux'"):
        device_named("cpux")
