"""A log says what happened, in strict JSON, also after a kill."""

import json
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import RegardError
from regard.storage.event_log import LOG, Log, Sink, Sinks, read

STEP = {"event": "step", "step": 7, "time": 1.5, "loss": 2.25}


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_the_log_has_one_strict_line_for_each_event(tmp_path):
    log = Log(tmp_path / "new" / "run")
    log.write({**STEP, "loss": math.nan, "gradient_norm": math.inf})
    log.write(
        {"event": "sample", "step": 7, "time": 2.0, "text": "two\nlines, a \u2028 and \udc80"}
    )
    lines = (tmp_path / "new" / "run" / LOG).read_bytes().splitlines()  # before it is closed
    assert len(lines) == 2
    first = json.loads(lines[0], parse_constant=refuse)
    assert first == {**STEP, "loss": "nan", "gradient_norm": "inf"}
    log.close()


numbers = st.none() | st.booleans() | st.integers() | st.floats()


@given(st.dictionaries(st.text(), numbers), st.sampled_from(["step", "validation", "end"]))
def test_every_number_comes_back_as_it_was(tmp_path_factory, values, kind):
    folder = tmp_path_factory.getbasetemp() / "numbers"
    event = {**values, "event": kind, "step": 1}
    log = Log(folder)
    log.write(event)
    log.close()
    back = read(folder)[-1]
    assert repr(back) == repr(event)  # NaN is not equal to itself, but reads alike


def test_a_model_that_writes_nan_has_written_a_word(tmp_path):
    log = Log(tmp_path)
    for text in ("nan", "inf", "-inf", "[red]\x1b\ud800"):
        log.write({"event": "sample", "step": 1, "time": 0.0, "text": text})
    log.close()
    assert [event["text"] for event in read(tmp_path)] == ["nan", "inf", "-inf", "[red]\x1b\ud800"]


def test_a_torn_last_line_is_passed_over_and_a_resumed_run_goes_on_after_it(tmp_path):
    log = Log(tmp_path)
    log.write(STEP)
    log.write({**STEP, "step": 8})
    log.close()
    path = tmp_path / LOG
    whole = path.read_bytes()
    for cut in range(1, len(whole) // 2):
        path.write_bytes(whole[:-cut])
        survivors = [7, 8] if cut == 1 else [7]  # only the newline is missing
        assert [event["step"] for event in read(path)] == survivors
        log = Log(tmp_path)
        log.write({**STEP, "step": 9})
        log.close()
        assert [event["step"] for event in read(path)] == [*survivors, 9]


@pytest.mark.parametrize("broken", [b"{torn", b"[1]", b"", b"\xff", b'"step"'])
def test_a_broken_line_elsewhere_is_named_by_file_and_number(tmp_path, broken):
    good = json.dumps(STEP).encode()
    (tmp_path / LOG).write_bytes(good + b"\n" + broken + b"\n" + good + b"\n")
    with pytest.raises(RegardError, match=r"log\.jsonl, line 2: not an event"):
        read(tmp_path)


HUGE = 10**400
WRONG = {  # of fields that a reader counts on
    "event": [0, 7, None, ["step"], {"step": 1}],
    "step": ["NaN", "7", -1, 1.5, True, HUGE, 1 << 63, [7], {}],
    "to": ["NaN", [0]],
    "time": ["nan?", None, True, HUGE, [1.5], {}],
    "loss": ["2.25", True, HUGE, 1e200, [2.25], {}],
    "bleu": ["x", [1]],
    "learning_rate": ["x", {}],
    "gradient_norm": ["x", -HUGE],
    "tokens": ["x", HUGE],
    "tokens_per_second": ["x", [9]],
}


@pytest.mark.parametrize("field", WRONG)
def test_an_event_whose_fields_are_of_another_type_is_none(tmp_path, field):
    for value in WRONG[field]:
        broken = json.dumps({**STEP, field: value})
        (tmp_path / LOG).write_text(f"{json.dumps(STEP)}\n{broken}\n")
        with pytest.raises(RegardError, match=r"log\.jsonl, line 2: not an event"):
            read(tmp_path)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, 0, 7, -1e99])
def test_numbers_that_are_not_known_or_not_finite_are_as_good_as_any(tmp_path, value):
    log = Log(tmp_path)
    log.write({**STEP, "loss": value, "bleu": value, "gradient_norm": value})
    log.close()
    assert repr(read(tmp_path)[0]["loss"]) == repr(value)


def test_a_missing_log_and_an_unwritable_folder_are_one_sentence(tmp_path):
    with pytest.raises(RegardError, match=r"cannot read the log .*log\.jsonl: No such file"):
        read(tmp_path / LOG)
    (tmp_path / "file").write_text("")
    with pytest.raises(RegardError, match=r"cannot write the log .*file"):
        Log(tmp_path / "file")


class Remembering(Sink):
    def __init__(self, closes: bool = True):
        self.events, self.closed, self.closes = [], False, closes

    def write(self, event):
        self.events.append(event)

    def close(self):
        self.closed = True
        if not self.closes:
            raise OSError("disk full")


def test_several_sinks_all_hear_and_all_close_even_when_one_fails():
    parts = [Remembering(), Remembering(closes=False), Remembering()]
    sinks = Sinks(parts)
    sinks.write(STEP)
    assert [part.events for part in parts] == [[STEP]] * 3
    with pytest.raises(OSError, match="disk full"):
        sinks.close()
    assert all(part.closed for part in parts)


def test_a_link_in_place_of_the_log_leaves_what_it_leads_to_alone(tmp_path):
    (tmp_path / "precious.txt").write_text("all of it")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.jsonl").symlink_to(tmp_path / "precious.txt")
    with pytest.raises(RegardError, match="it is a link"):
        Log(tmp_path / "run", 0)
    assert (tmp_path / "precious.txt").read_text() == "all of it"


def test_a_log_that_has_another_name_too_goes_on_as_a_file_of_its_own(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "kept.jsonl").write_bytes(b'{"event": "one"}\n{"event": "two"}\n')
    os.link(tmp_path / "kept.jsonl", tmp_path / "run" / "log.jsonl")
    log = Log(tmp_path / "run", 17)
    log.write({"event": "three"})
    log.close()
    assert (tmp_path / "kept.jsonl").read_bytes() == b'{"event": "one"}\n{"event": "two"}\n'
    assert [event["event"] for event in read(tmp_path / "run")] == ["one", "three"]
