"""The picture of gradients through time shows what logs say, or one sentence says what is wrong."""

import math
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from regard.commands.plot import Plot, _clip
from regard.errors import RegardError
from regard.families.settings import Settings
from regard.inspection.through_time import _draw, _reach, plot
from regard.runs import stored_run
from regard.storage.event_log import Log
from regard.text.learning import learn


def write(folder, decay=0.5, norms=(1.0, 2.0, 3.0), clip=None, more=()):
    """A log with a step for each norm, and a curve with each."""
    log = Log(folder)
    for step, norm in enumerate(norms, start=1):
        place = {"step": 10 * step, "time": float(step)}
        log.write({"event": "step", **place, "loss": 2.0, "gradient_norm": norm})
        curve = [step * decay**k for k in range(20)]
        log.write({"event": "through_time", **place, "norms": curve})
    for event in more:
        log.write(event)
    log.close()
    if clip is not None:
        tokenizer = learn("char", ["some letters"])
        settings = Settings().changed(
            {"model": {"preset": "elman"}, "optimizer": {"clip": clip}}, "test"
        )
        config = stored_run.config_for(settings.model, tokenizer, tokenizer)
        stored_run.write_run(folder, settings, config, [tokenizer], "digest", {})
    return folder


def texts(path):
    """All words in an SVG."""
    return [
        "".join(node.itertext()) for node in ElementTree.parse(path).iter() if "}text" in node.tag
    ]


def test_one_run_is_shown_from_early_to_late(tmp_path):
    plot([write(tmp_path / "run", norms=[1.0] * 1000)], tmp_path / "new" / "a.svg")
    words = texts(tmp_path / "new" / "a.svg")
    shown = [word for word in words if re.match(r"step \d", word)]
    assert (shown[0], shown[-1], len(shown)) == ("step 10", "step 10,000", 6)
    assert {"tokens back", "step"} <= set(words)


def test_several_runs_are_named_and_where_they_are_clipped(tmp_path):
    folders = [
        write(tmp_path / "_a$b$ & <c>", clip=1.0),
        write(tmp_path / "wild", decay=2.0, clip=0.0),
        write(tmp_path / "other", clip=0.25),
        write(tmp_path / "again", clip=1.0),
    ]
    plot(folders, tmp_path / "a.svg", _clip)
    words = texts(tmp_path / "a.svg")
    assert [word for word in words if "not clipped" in word] == ["wild (not clipped)"]
    assert {"_a$b$ & <c>", "other", "again"} <= set(words)
    assert [word for word in words if word.startswith("clip")] == ["clip 0.25", "clip 1"]


def test_long_names_stand_beside_the_curves(tmp_path):
    folders = [write(tmp_path / f"{'long' * 10}-{i}") for i in range(8)]
    plot(folders, tmp_path / "a.svg")
    assert {folder.name for folder in folders} <= {
        word.removesuffix(" (not clipped)") for word in texts(tmp_path / "a.svg")
    }


def test_what_was_undone_is_gone_and_what_is_no_number_is_a_gap(tmp_path):
    more = [
        {"event": "fault", "step": 30, "first": 27, "time": 3.0, "message": "..."},
        {"event": "back", "step": 30, "to": 20, "turn": 1, "time": 3.0},
        {"event": "step", "step": 40, "time": 4.0, "loss": math.nan, "gradient_norm": math.inf},
        {"event": "through_time", "step": 40, "time": 4.0, "norms": [1.0, 0.0, None]},
    ]
    found = _reach(write(tmp_path / "run", more=more, clip=0.5), "run", clip=0.5)
    assert found.steps == [10, 20, 40]
    assert found.norms.x.tolist() == [10, 20, 40]
    np.testing.assert_equal(found.norms.y, [1.0, 2.0, np.nan])
    np.testing.assert_equal(found.curves[-1].y, [1.0, 0.0, np.nan])
    assert found.curves[1].y[3] == 2 * 0.5**3
    assert (found.faults, found.clip) == ([27], 0.5)
    plot([tmp_path / "run"], tmp_path / "a.svg")
    assert not re.search(r"\bnan\b", (tmp_path / "a.svg").read_text())


def drawn(folders):
    """The left axes of a picture, with their limits."""
    figure = Figure()
    _draw(figure, [_reach(folder, folder.name) for folder in folders])
    figure.canvas.draw()
    return figure.axes[0]


def gone_at_once(step, norms):
    return {"event": "through_time", "step": step, "time": 9.0, "norms": norms}


@pytest.mark.parametrize("alone", [False, True])
def test_a_gradient_that_is_gone_at_once_falls_to_the_lower_edge_and_has_a_mark_there(
    tmp_path, alone
):
    gone = write(tmp_path / "gone", more=[gone_at_once(40, [90.45, *[0.0] * 19])])
    axes = drawn([gone] if alone else [write(tmp_path / "other"), gone])
    low, high = axes.get_ylim()
    (line,) = [line for line in axes.lines if line.get_marker() == "v"]
    assert line.get_ydata().tolist() == [90.45, *[low] * 19]
    assert line.get_markevery() == [1]
    assert 0 < low < 90.45 < high


HUGE = 10**400


@pytest.mark.parametrize(
    "norms", [None, 1.0, "x", ["x"], [[1.0]], [True], [HUGE], {"a": 1}, "gone"]
)
def test_a_curve_that_is_none_is_passed_over(tmp_path, norms):
    strange = {"event": "through_time", "step": 99, "norms": norms}
    if norms == "gone":
        del strange["norms"]
    places = [{"event": kind} for kind in ("back", "through_time", "step")]
    faults = [{"event": "fault", "step": 1, "first": first} for first in (HUGE, "x", None, [1], -1)]
    folder = write(tmp_path / "run", more=[*faults, *places[1:], strange])
    shown = _reach(folder, "run")
    assert (shown.steps, shown.faults) == ([10, 20, 30], [])
    plot([folder], tmp_path / "a.png")


def test_gradients_of_a_run_that_exploded_are_a_picture_too(tmp_path):
    plot([write(tmp_path / "run", norms=(1.0, 1e19, 1e38))], tmp_path / "a.png")


def test_gradients_of_nothing_at_all_are_a_picture_too(tmp_path):
    folder = write(tmp_path / "run", norms=())
    log = Log(folder)
    log.write(gone_at_once(10, [0.0, 0.0]))
    log.write({"event": "step", "step": 10, "time": 1.0, "loss": 2.0, "gradient_norm": 0.0})
    log.close()
    assert drawn([folder]).get_ylim()[0] > 0


def test_the_command_draws_it_under_a_name_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "run")
    Plot(runs=("run",), through_time=True).run(Console(quiet=True))
    assert Path("through-time.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(RegardError, match="leave out --by tokens"):
        Plot(runs=("run",), through_time=True, by="tokens").run(Console(quiet=True))


def test_mistakes_are_one_sentence(tmp_path):
    out = tmp_path / "a.png"
    with pytest.raises(RegardError, match="name at least one run"):
        plot([], out)
    with pytest.raises(RegardError, match="cannot read the log"):
        plot([tmp_path / "nowhere"], out)
    log = Log(tmp_path / "transformer")
    log.write({"event": "step", "step": 1, "time": 1.0, "loss": 2.0, "gradient_norm": 1.0})
    log.close()
    with pytest.raises(RegardError, match=r"transformer has no .* \(elman, gru, lstm\) record"):
        plot([write(tmp_path / "run"), tmp_path / "transformer"], out)
    with pytest.raises(RegardError, match=r"one of \.png, \.svg, \.pdf"):
        plot([tmp_path / "run"], tmp_path / "a.gif")
    (tmp_path / "file").write_text("")
    with pytest.raises(RegardError, match="cannot draw to"):
        plot([tmp_path / "run"], tmp_path / "file" / "a.png")
    assert not out.exists()
