"""Curves show what a log says, wherever it lies and whatever happened to the run."""

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from regard.errors import RegardError
from regard.inspection.curves import Curve, RunCurves, limits, names, plot, smooth
from regard.storage.event_log import LOG, Log

NOTHING = Curve(np.array([]), np.array([]))


def write(folder, losses, validations=(), **more):
    log = Log(folder)
    log.write({"event": "start", "step": 0, "time": 0.0, "run": folder.name})
    for i, loss in enumerate(losses):
        place = {"step": 10 * i, "time": 6.0 * i, "tokens": 100_000 * i}
        log.write({"event": "step", **place, "loss": loss, "learning_rate": 1e-3, **more})
        if i < len(validations):
            log.write({"event": "validation", **place, "loss": validations[i], "best": True})
    log.close()
    return folder


def texts(path):
    """All words in an SVG."""
    return [
        "".join(node.itertext()) for node in ElementTree.parse(path).iter() if "}text" in node.tag
    ]


def run(losses, validations=()):
    steps = np.arange(len(losses), dtype=float)
    checks = np.array(validations, dtype=float)
    return RunCurves(
        "a", Curve(steps, np.array(losses)), Curve(steps[: len(checks)], checks), NOTHING, NOTHING
    )


def test_the_picture_names_every_run_with_its_best_loss(tmp_path):
    falling = [4 / (i + 1) for i in range(50)]
    plain = write(tmp_path / "plain", falling, [3.5, 2.25, 2.5])
    costly = write(tmp_path / "_a$b$ & <c>", falling)
    plot([plain, costly], tmp_path / "new" / "curves.svg")
    words = texts(tmp_path / "new" / "curves.svg")
    assert "plain  (best 2.250)" in words
    assert "_a$b$ & <c>" in words
    assert {"loss", "step", "learning rate", "training", "validation"} <= set(words)


def test_validations_by_what_was_written_have_a_panel_of_their_own(tmp_path):
    log = Log(tmp_path / "run")
    for step in range(1, 5):
        log.write({"event": "step", "step": step, "time": step, "loss": 3 / step})
        log.write({"event": "validation", "step": step, "time": step, "bleu": 20.0 * step})
    log.close()
    plot([tmp_path / "run"], tmp_path / "curves.svg")
    words = texts(tmp_path / "curves.svg")
    assert "run  (best BLEU 80.0)" in words
    assert {"loss", "BLEU", "training"} <= set(words)
    assert "validation" not in words


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.PDF", b"%PDF")])
def test_the_suffix_says_what_is_drawn(tmp_path, name, start):
    plot([write(tmp_path / "run", [3.0, 2.0])], tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("by", "label", "last"),
    [("step", "step", "500"), ("tokens", "training tokens", "5M"), ("time", "minutes", "5")],
)
def test_the_axis_is_steps_tokens_or_time(tmp_path, by, label, last):
    plot([write(tmp_path / "run", [3.0] * 51)], tmp_path / "a.svg", by)
    words = texts(tmp_path / "a.svg")
    assert any(word.startswith(label) for word in words)
    assert last in words


def test_folders_of_one_name_are_told_apart_by_those_above(tmp_path):
    runs = [tmp_path / "a" / "x" / "run", tmp_path / "b" / "x" / "run", tmp_path / "b" / "other"]
    assert names(runs) == ["a/x/run", "b/x/run", "other"]
    for folder in runs:
        write(folder, [3.0, 2.0])
    plot([*runs, runs[0] / ".." / "run"], tmp_path / "a.svg")  # twice the same is one run
    labels = [word for word in texts(tmp_path / "a.svg") if "run" in word or "other" in word]
    assert labels == ["a/x/run", "b/x/run", "other"]


def test_many_runs_all_have_their_name(tmp_path):
    runs = [write(tmp_path / f"run-{i}", [3.0, 2.0]) for i in range(25)]
    plot(runs, tmp_path / "a.svg")
    assert {f"run-{i}" for i in range(25)} <= set(texts(tmp_path / "a.svg"))


def test_a_resumed_run_shows_what_led_to_its_end_on_one_clock(tmp_path):
    from regard.inspection.curves import _run

    folder = write(tmp_path / "run", [5.0, 4.0, 9.0, 9.0])  # killed; steps 20 and 30 are lost
    log = Log(folder)
    log.write({"event": "start", "step": 10, "time": 0.0})
    for i in range(3):
        log.write({"event": "step", "step": 20 + 10 * i, "time": 1.0 + i, "loss": 3.0 - i})
    log.close()
    assert _run(folder, "run", "step").training.x.tolist() == [0, 10, 20, 30, 40]
    by_time = _run(folder, "run", "time").training
    assert by_time.y.tolist() == [5, 4, 3, 2, 1]
    assert by_time.x.tolist() == [0, 6, 7, 8, 9]


def logged(folder, *events):
    """A log of (kind, step, seconds, loss), or of the event itself."""
    log = Log(folder)
    for event in events:
        if isinstance(event, tuple):
            event = dict(zip(("event", "step", "time", "loss"), event, strict=True))
        log.write(event)
    log.close()
    return folder


def points(folder, by="step"):
    from regard.inspection.curves import _run

    drawn = _run(folder, "run", by)
    return [list(zip(c.x, c.y, strict=True)) for c in (drawn.training, drawn.validation)]


def test_what_was_logged_beyond_the_place_a_run_stepped_back_to_is_gone(tmp_path):
    folder = logged(
        tmp_path,
        ("step", 10, 1.0, 5.0),
        ("validation", 10, 1.5, 5.1),
        ("step", 20, 2.0, 9.0),
        ("validation", 20, 2.5, 1.0),  # would be the best
        ("step", 30, 3.0, 9.5),
        {"event": "back", "step": 33, "to": 10, "time": 3.3, "turn": 1},
        ("step", 40, 4.0, 4.0),  # it never comes back to a step below the last
        ("validation", 40, 4.5, 4.1),
    )
    assert points(folder) == [[(10, 5), (40, 4)], [(10, 5.1), (40, 4.1)]]
    assert points(folder, "time") == [[(1, 5), (4, 4)], [(1.5, 5.1), (4.5, 4.1)]]


def test_stepping_back_further_each_time_keeps_only_what_led_on(tmp_path):
    backs = [{"event": "back", "step": 30, "to": to, "time": 5.0} for to in (20, 10, 0)]
    folder = logged(
        tmp_path,
        *(("step", i, i / 10, 3.0) for i in (10, 20, 30)),
        backs[0],
        ("step", 30, 6.0, 2.0),
        *backs[1:],
        ("step", 50, 7.0, 1.0),
    )
    assert points(folder)[0] == [(50, 1)]


@pytest.mark.parametrize(
    ("clock", "seconds"),
    [(0.0, [1, 6, 8]), (6.0, [1, 6, 8])],  # the clock starts anew, or goes on from the checkpoint's
)
def test_a_resumed_run_goes_on_behind_its_checkpoint(tmp_path, clock, seconds):
    folder = logged(
        tmp_path,
        ("step", 10, 1.0, 5.0),
        ("step", 20, 6.0, 4.0),
        ("step", 30, 7.0, 9.0),
        ("validation", 30, 7.0, 0.5),
        {"event": "start", "step": 20, "time": clock},
        {"event": "resume", "step": 20, "time": clock},
        ("step", 40, clock + 2.0, 3.0),
    )
    assert points(folder) == [[(10, 5), (20, 4), (40, 3)], []]
    assert [x for x, _ in points(folder, "time")[0]] == seconds


def test_a_first_report_long_after_a_resumption_is_behind_all_before_it(tmp_path):
    resume = {"event": "resume", "step": 20, "time": 0.0}
    folder = logged(tmp_path, ("step", 20, 6.0, 4.0), resume, ("step", 40, 9.0, 3.0))
    assert [x for x, _ in points(folder, "time")[0]] == [6, 15]


def test_a_run_that_steps_back_after_it_was_resumed_stays_on_one_clock(tmp_path):
    folder = logged(
        tmp_path,
        ("step", 10, 100.0, 5.0),
        {"event": "resume", "step": 10, "time": 0.0},
        ("step", 20, 2.0, 4.0),
        ("step", 30, 5.0, 9.0),
        {"event": "back", "step": 30, "to": 20, "time": 6.0},
        ("step", 30, 8.0, 3.0),
    )
    assert points(folder, "time")[0] == [(100, 5), (102, 4), (108, 3)]


def test_an_event_that_does_not_say_where_it_went_back_to_drops_nothing(tmp_path):
    folder = logged(tmp_path, ("step", 10, 1.0, 5.0), {"event": "back", "to": None, "time": 2.0})
    assert points(folder)[0] == [(10, 5)]


# Losses that are not numbers


@pytest.mark.parametrize("by", ["step", "tokens", "time"])
def test_events_without_their_fields_are_passed_over(tmp_path, by):
    bare = [{"event": kind} for kind in ("step", "validation", "back", "resume", "end", "unheard")]
    sparse = [
        {"event": "step", "step": 5, "time": -1e99},
        {"event": "validation", "to": 3, "step": None},
    ]
    whole = {"event": "step", "step": 5, "time": 1.0, "tokens": 9, "loss": 2.0}
    folder = logged(tmp_path / "run", *bare, *sparse, whole, *bare, *sparse)
    plot([folder], tmp_path / "a.svg", by)
    assert any("run" in word for word in texts(tmp_path / "a.svg"))


def test_numbers_as_large_as_a_log_may_hold_are_a_picture_too(tmp_path):
    large = [
        {"event": "step", "step": s, "time": t, "tokens": t, "loss": t, "learning_rate": t}
        for s, t in ((1, -9e99), ((1 << 63) - 1, 9e99))
    ]
    large.append({**large[0], "tokens": math.nan, "time": math.nan, "step": 2})
    large[-1]["loss"] = math.inf
    for by in ("step", "tokens", "time"):
        plot([logged(tmp_path / "run", *large)], tmp_path / "a.png", by)
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_a_name_that_a_terminal_would_obey_is_spelled_out_in_the_picture(tmp_path):
    plot([write(tmp_path / "a\x1b[31m\x07", [2.0, 1.0])], tmp_path / "a.svg")
    assert "a\\x1b[31m\\x07" in texts(tmp_path / "a.svg")  # and XML could not hold it


def test_a_run_that_diverged_is_drawn_up_to_there_and_says_so(tmp_path):
    lost = write(tmp_path / "lost", [3.0, 2.5, 2.0, math.nan, math.inf], [3.0, math.nan])
    gone = write(tmp_path / "gone", [math.nan, math.nan])
    plot([lost, gone], tmp_path / "a.svg")
    words = texts(tmp_path / "a.svg")
    assert "lost  (best 3.000, × diverged)" in words
    assert "gone  (× diverged)" in words
    assert not re.search(r"\bnan\b", (tmp_path / "a.svg").read_text())


def test_a_run_whose_training_losses_are_no_numbers_is_drawn_by_its_validations(tmp_path):
    lost = write(tmp_path / "lost", [math.nan, math.nan], [2.5, 2.25])
    plot([lost], tmp_path / "a.svg")
    assert "lost  (best 2.250, × diverged)" in texts(tmp_path / "a.svg")


def test_smoothing_keeps_gaps_and_levels_and_calms_noise():
    noise = np.random.default_rng(0).normal(2.0, 0.1, 600)
    noise[100:110] = np.nan
    calm = smooth(noise)
    assert np.isnan(calm).tolist() == np.isnan(noise).tolist()
    assert np.nanstd(calm) < np.nanstd(noise) / 3
    assert np.nanmean(calm) == pytest.approx(2.0, abs=0.01)
    for length in (1, 2, 3, 10, 100):
        level = np.full(length, 3.0)
        np.testing.assert_allclose(smooth(level), level)


# From where to where


def test_a_huge_beginning_is_cut_and_all_that_follows_is_seen():
    later = [3.0 - i / 100 for i in range(95)]
    low, high = limits([run([1000.0, 500.0, 100.0, 20.0, 8.0, *later])])
    assert low < min(later)
    assert 2.9 < high < 5


def test_an_even_fall_is_seen_from_its_first_loss():
    losses = [5.0 - i / 25 for i in range(100)]
    low, high = limits([run(losses, [5.5, 5.0])])
    assert low < losses[-1]
    assert high > 5.5


def test_a_run_that_explodes_does_not_squash_the_others():
    calm = run([4.0 - i / 50 for i in range(100)])
    wild = run([4.0] * 50 + [1e6] * 50)
    low, high = limits([calm, wild])
    assert low < 2.1
    assert 4.0 < high < 5.0


def test_limits_are_an_interval_even_of_one_point_or_none():
    for losses in ([2.0], [0.0, 0.0], [math.nan]):
        low, high = limits([run(losses)])
        assert low < high


# Mistakes


@pytest.mark.parametrize("name", ["curves", "curves.gif", "curves.txt"])
def test_an_unknown_suffix_is_told_the_known_ones(tmp_path, name):
    with pytest.raises(RegardError, match=r"one of \.png, \.svg, \.pdf"):
        plot([write(tmp_path / "run", [3.0])], tmp_path / name)


def test_a_run_with_nothing_to_draw_is_one_sentence(tmp_path):
    out = tmp_path / "a.png"
    with pytest.raises(RegardError, match="name at least one run"):
        plot([], out)
    with pytest.raises(RegardError, match=rf"cannot read the log .*{LOG}"):
        plot([tmp_path / "nowhere"], out)
    with pytest.raises(RegardError, match="empty has nothing to plot: its log has no steps"):
        plot([write(tmp_path / "empty", [])], out)
    with pytest.raises(RegardError, match="its log has no losses by tokens"):
        plot([write(tmp_path / "old", [3.0], tokens=None)], out, "tokens")
    assert not out.exists()


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RegardError, match="cannot draw to"):
        plot([write(tmp_path / "run", [3.0])], tmp_path / "file" / "a.png")
