"""What a person sees: all numbers, nothing but text, within the terminal, which is given back."""

import io
import math
import re
import sys

import pytest
from rich.cells import cell_len
from rich.console import Console

from regard.formats import count, duration, moment, percent, rate, size
from regard.runs.view.live import PLAIN_WIDTH, LiveView, PlainView, view
from regard.runs.view.sparkline import BLOCKS, sparkline
from regard.storage.event_log import Sinks
from regard.terminal import literal

START = {
    "event": "start",
    "step": 0,
    "time": 0.0,
    "run": "runs/[red]shakespeare",
    "model": "regard-6",
    "parameters": 12_345_678,
    "steps": 1000,
    "tokens_per_step": 65_536,
    "rows": 16,
    "accumulation": 4,
    "device": "NVIDIA H200",
    "precision": "bf16",
    "objective": "causal",
    "train_tokens": 1_003_854,
    "valid_tokens": 111_540,
    "peak": "989 TFLOP/s bf16 datasheet, 6N + 12Ldn per token",
}
STEP = {
    "event": "step",
    "step": 100,
    "time": 10.0,
    "loss": 2.3456,
    "learning_rate": 3e-4,
    "gradient_norm": 0.81,
    "tokens": 6_553_600,
    "tokens_per_second": 12_345.0,
    "share_of_peak": 0.41,
    "memory": 1_234_567_890,
    "epoch": 0.12,
    "padding": 0.071,
    "seconds_left": 125.0,
}
VALIDATION = {
    "event": "validation",
    "step": 100,
    "time": 11.0,
    "loss": 2.4,
    "perplexity": math.exp(2.4),
    "bits_per_byte": 1.2345,
    "tokens": 111_540,
    "best": True,
    "accuracy": 0.451,
    "bleu": 12.34,
    "chrf": 34.56,
    "exact": 0.1,
}
SAMPLE = {"event": "sample", "step": 100, "time": 12.0}
STORY = {
    **SAMPLE,
    "prompt": "Once",
    "text": " upon [bold]a[/bold]\n:smile: \x1b[31mtime\r\x07" * 20,
}
PAIR = {
    **SAMPLE,
    "source": "Das Haus [/] " + "家族👨‍👩‍👧 " * 60,
    "written": "The [red]house",
    "target": "A house\x9b",
}
WARNING = {"event": "warning", "step": 100, "time": 12.0, "message": "spike of [red]9[/red] " * 9}
SAVED = {"event": "checkpoint", "step": 100, "time": 13.0, "path": "runs/shakespeare/" + "x" * 150}
END = {
    "event": "end",
    "step": 1000,
    "time": 125.0,
    "reason": "finished",
    "best_loss": 2.3,
    "best_step": 900,
    "seconds": 125.0,
    "tokens_per_second": 12_000.0,
}
ALL = [START, STEP, VALIDATION, STORY, PAIR, WARNING, SAVED, END]
WORST = {**STEP, "loss": 1e30, "gradient_norm": math.nan, "tokens_per_second": 1e9, "step": 10**7}
HEIGHT = 18  # lines of a panel with all there is, 60 columns wide
CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def plain(*events, every=1, encoding="utf-8", width=80):
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding, write_through=True), width=width)
    sink = PlainView(console, every)
    for event in events:
        sink.write(event)
    sink.close()
    return raw.getvalue().decode(encoding).splitlines()


def terminal(width=80, height=50):
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=height)


def live(*events, width=80, height=50):
    """All lines written to a terminal, and those of the last panel."""
    console = terminal(width, height)
    sink = LiveView(console)
    for event in events:
        sink.write(event)
    sink.close()
    lines = CONTROLS.sub("", console.file.getvalue()).replace("\r", "\n").splitlines()
    first = max(i for i, line in enumerate(lines) if line.startswith("╭"))
    last = max(i for i, line in enumerate(lines) if line.startswith("╰"))
    return lines, [line for line in lines[first : last + 1] if line]


# Numbers


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (count(999), "999"),
        (count(9999), "9,999"),
        (count(12_345), "12.3k"),
        (count(999_949), "999.9k"),
        (count(999_950), "1.0M"),
        (count(1.2e9), "1.2B"),
        (count(5e15), "5000.0T"),
        (size(640), "640 B"),
        (size(1_234_567_890), "1.2 GB"),
        (size(80.1e9), "80.1 GB"),
        (duration(0), "0 s"),
        (moment(0.0123456), "12.3 ms"),
        (moment(2.5512), "2.55 s"),
        (moment(59.96), "1 min"),
        (moment(91), "1 min 31 s"),
        (duration(-3), "0 s"),
        (duration(59.6), "1 min"),
        (duration(125), "2 min 5 s"),
        (duration(3599.7), "1 h"),
        (duration(12_000), "3 h 20 min"),
        (duration(4 * 86_400 + 3601), "4 d 1 h"),
        (duration(86_400 + 59), "1 d"),
        (duration(math.inf), "?"),
        (rate(4.24), "4.2"),
        (rate(12_345), "12,345"),
        (rate(1_234_567), "1.2M"),
        (percent(0.41), "41 %"),
        (percent(0.041), "4.1 %"),
        (percent(1.0), "100 %"),
        (percent(0.4512, digits=3), "45.1 %"),
    ],
)
def test_numbers_read_like_words(shown, expected):
    assert shown == expected


def test_controls_are_spelled_and_letters_are_kept():
    assert literal("a\x1b[31m\r\t\x9b\u202e\ud800") == r"a\x1b[31m\r\t\x9b\u202e\ud800"
    for kept in ("Ünï 家 👨‍👩‍👧", "two\nlines", "5\u00a0%", "می\u200cخواهم"):
        assert literal(kept) == kept
    assert literal("家", "ascii") == r"\u5bb6"


# Plain lines


def test_a_plain_line_reads_like_this():
    assert plain(START, {**STEP, "padding": None, "tokens": None})[-1] == (
        "step   100/1000  loss   2.3456  lr 3.0e-04  norm 0.81  12,345 tok/s  41 % of peak"
        "   1.2 GB  left 2 min 5 s  epoch 0.12"
    )


def test_every_number_of_an_event_is_in_the_plain_lines():
    words = "\n".join(plain({**STEP, "share_of_peak": None, "memory": None}, VALIDATION))
    for shown in ("2.3456", "3.0e-04", "0.81", "6.6M", "12,345", "0.12", "7.1 %", "2 min 5 s"):
        assert shown in words
    for shown in ("2.4000 best", "11.02", "1.2345", "45.1 %", "12.34", "34.56", "10.0 %"):
        assert shown in words


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_plain_lines_keep_their_length_on_any_console_in_any_encoding(width, encoding):
    lines = plain(*ALL, WORST, encoding=encoding, width=width)
    assert max(map(cell_len, lines)) <= PLAIN_WIDTH
    assert not CONTROLS.search("\n".join(lines))


def test_what_a_model_writes_is_shown_literally_and_indented():
    lines = plain(STORY, PAIR)
    assert lines[0] == "step   100  sample"
    assert "    prompt  Once" in lines
    assert r"    text     upon [bold]a[/bold]" in lines
    assert r"            :smile: \x1b[31mtime\r\x07 upon [bold]a[/bold]" in lines
    assert "    written The [red]house" in lines
    assert r"    target  A house\x9b" in lines


def test_steps_are_printed_at_most_once_in_every_so_many_and_the_last_always():
    steps = [{**STEP, "step": step} for step in (1, 5, 10, 15, 20, 25, 28)]
    lines = plain({**START, "steps": 28}, *steps, every=10)
    assert re.findall(r"step +(\d+)/28  loss", "\n".join(lines)) == ["1", "10", "20", "28"]
    lines = plain(START, *steps, every=5)
    assert len(re.findall("loss", "\n".join(lines))) == 6  # 25 and 28 are of one five


def test_what_an_event_lacks_is_not_shown():
    bare = {"event": "step", "step": 3, "time": 0.0}
    assert plain(bare, {**bare, "step": 4, "loss": math.nan}, {**bare, "event": "validation"}) == [
        "step     3",
        "step     4  loss      nan",
        "step     3",
    ]
    assert plain({"event": "start"}, {"event": "end", "step": 3}) == ["ended at step 3"]


def test_the_start_and_the_end_are_told():
    lines = plain(START, WARNING, SAVED, END)
    words = "\n".join(lines)
    assert lines[0] == "runs/[red]shakespeare"
    for shown in (
        "regard-6, 12.3M parameters",
        "1,000 steps",
        "16 rows",
        "accumulated 4×",
        "6N + 12Ldn",
    ):
        assert shown in words
    assert "step   100/1000  warning: spike of [red]9[/red]" in words
    assert lines[-1] == (
        "finished at step 1000 after 2 min 5 s, best validation loss 2.3000 at step 900, "
        "12,000 tok/s"
    )


# The panel


def test_the_view_suits_the_console():
    assert isinstance(view(terminal(), 10), LiveView)
    assert isinstance(view(Console(file=io.StringIO()), 10), PlainView)
    dumb = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    assert isinstance(view(dumb, 10), PlainView)
    ascii_only = io.TextIOWrapper(io.BytesIO(), "ascii")
    assert isinstance(view(Console(file=ascii_only, force_terminal=True), 10), PlainView)


@pytest.mark.parametrize("width", [30, 60, 61, 87, 100, 119, 160, 200])
@pytest.mark.parametrize("sample", [STORY, PAIR])
def test_nothing_is_wider_than_the_terminal_nor_the_panel_higher_than_it_may(width, sample):
    steps = [{**STEP, "step": step, "loss": 300 / step} for step in range(1, 400)]
    events = [START, *steps, WORST, VALIDATION, {**VALIDATION, "best": False}, sample, SAVED, END]
    lines, panel = live(*events, width=width)
    assert max(map(cell_len, lines)) <= width
    if width >= 60:
        assert len(panel) <= HEIGHT
        assert {cell_len(line) for line in panel} == {width}
        assert all("…" not in line for line in panel[1:5])  # no number is cut


@pytest.mark.parametrize("width", [60, 100, 200])
def test_every_number_of_an_event_is_in_the_panel(width):
    words = "\n".join(live(START, STEP, VALIDATION, width=width)[1])
    for shown in ("100/1000", "10 %", "2 min 5 s left", "2.3456", "3.0e-04", "0.81", "6.6M"):
        assert shown in words
    for shown in ("12,345", "41 %", "1.2 GB", "0.12", "7.1 %"):
        assert shown in words
    for shown in ("2.4000 best", "11.02", "1.2345", "45.1 %", "12.34", "34.56", "10.0 %"):
        assert shown in words


def test_the_best_validation_is_remembered():
    later = {**VALIDATION, "step": 200, "loss": 2.5, "best": False}
    words = "\n".join(live(START, VALIDATION, later)[1])
    assert "2.5000" in words
    assert "2.4000 at 100" in words


def test_the_panel_shows_what_a_model_writes_literally():
    words = "\n".join(live(START, STORY)[1])
    assert "Once upon [bold]a[/bold]" in words
    assert r":smile: \x1b[31mtime\r\x07" in words
    words = "\n".join(live(START, PAIR)[1])
    assert "The [red]house" in words
    assert r"A house\x9b" in words
    assert "runs/[red]shakespeare" in words


def test_a_text_that_repeats_its_prompt_is_shown_once():
    words = "\n".join(live({**SAMPLE, "prompt": "Once", "text": "Once upon"})[1])
    assert words.count("Once") == 1


def test_warnings_stay_above_the_panel_and_the_last_panel_stays_below():
    lines, panel = live(START, STEP, WARNING, STEP, END)
    assert sum("warning: spike" in line for line in lines) == 1
    assert "warning" not in "\n".join(panel)
    below = " ".join(lines[lines.index(panel[-1]) + 1 :])
    assert "finished at step 1000 after 2 min 5 s, best validation loss 2.3000 at step 900" in below


def test_a_loss_that_is_not_a_number_is_seen_at_once():
    words = "\n".join(live(START, STEP, {**STEP, "loss": math.nan})[1])
    assert re.search(r"loss +nan", words)
    assert re.search(r"2\.35 .*×", words)  # in the curve


def test_a_panel_has_the_width_that_the_terminal_has_now():
    console = terminal(80)
    sink = LiveView(console)
    sink.write(START)
    console.width = 60
    sink.write(VALIDATION)
    sink.close()
    tops = [line for line in console.file.getvalue().splitlines() if "╭" in line]
    assert [cell_len(CONTROLS.sub("", line).strip("\r")) for line in tops] == [80, 60, 60]


def test_steps_without_an_end_are_counted_all_the_same():
    words = "\n".join(live({**START, "steps": None}, {**STEP, "seconds_left": None})[1])
    assert re.search(r"step +100/\?", words)
    assert "%" not in words.replace("41 %", "").replace("7.1 %", "")


def test_a_panel_fits_a_terminal_of_few_lines():
    lines, panel = live(START, STEP, VALIDATION, STORY, height=8)
    assert any("12,345" in line for line in lines)
    assert panel[-1].startswith("╰")


def interrupted(console, out):
    sink = Sinks([LiveView(console)])
    try:
        sink.write(START)
        assert sys.stdout is not out  # prints go above the panel
        assert "\x1b[?25h" not in console.file.getvalue()
        raise KeyboardInterrupt
    finally:
        sink.close()


def test_the_terminal_is_given_back_after_an_exception():
    console, out, err = terminal(), sys.stdout, sys.stderr
    with pytest.raises(KeyboardInterrupt):
        interrupted(console, out)
    assert (sys.stdout, sys.stderr) == (out, err)
    written = console.file.getvalue()
    assert written.index("\x1b[?25l") < written.index("\x1b[?25h")  # hidden, then shown
    assert written.count("╰") == 2  # the last panel is drawn once more, and stays


def test_closing_twice_is_closing_once():
    console = terminal()
    sink = LiveView(console)
    sink.write(START)
    sink.close()
    written = console.file.getvalue()
    sink.close()
    assert console.file.getvalue() == written


# The curve


def test_a_curve_falls_from_full_blocks_to_the_lowest():
    (line,) = sparkline([8, 7, 6, 5, 4, 3, 2, 1], width=40, height=1)
    assert line == "1 " + BLOCKS[:0:-1]
    lines = sparkline([float(i) for i in range(16, 0, -1)], width=40, height=2)
    assert lines == ["15 ██▇▆▅▄▃▂        ", " 1 █████████▇▆▅▄▃▂▁"]  # 16 is beyond the scale


def test_a_curve_uses_its_whole_width_and_no_more():
    values = [1 / (i + 1) for i in range(5000)]
    for width in (20, 57, 131):
        assert {len(line) for line in sparkline(values, width, height=2)} == {width}


def test_a_huge_beginning_does_not_flatten_a_curve():
    values = [1e6] * 5 + [3.0] * 50 + [2.0] * 50
    (line,) = sparkline(values, width=200, height=1)
    assert line.count("█") == 55
    assert line.count("▁") == 50


def test_a_curve_of_nothing_finite_is_none():
    assert sparkline([], 20, 2) == sparkline([math.nan, math.inf], 20, 2) == []
    assert sparkline([2.0, math.nan, 2.0], 20, 1) == ["2 ▁×▁"]
