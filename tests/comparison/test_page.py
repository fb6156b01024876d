"""The report: whole, escaped, and nothing to load."""

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import comparison, result

from regard.comparison.report.charts import Axis, Series, chart, dots
from regard.comparison.report.page import page
from regard.comparison.results import Line
from regard.comparison.validation import LARGEST

EVIL = "<script>alert('x')</script> & \"'><img src=x onerror=alert(1)>"
VOID = {"meta", "line", "circle", "rect", "polygon", "polyline", "img", "br"}


class Reader(HTMLParser):
    """Every tag and attribute, and whether tags are closed in order."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.words, self.open = [], [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attributes]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attributes]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, words):
        self.words.append(words)


def made(**more):
    results = (
        result("lstm", (2.0, 2.1), lengths=(2.0, 2.1)),
        result("ngram", (2.5, 2.5), parameters=0),
        result("transformer", (1.9, 1.8), power=2.0),
        result("broken", failed="no luck"),
    )
    return comparison(*results, **more)


def test_the_page_is_well_formed_and_has_every_section():
    reader = Reader(page(made()))
    assert reader.open == []
    text = " ".join(reader.words)
    for title in ("How good they are", "How fast", "How far back", "How cost grows", "What they"):
        assert title in text
    assert "broken could not be compared: no luck" in text
    assert reader.tags.count("h1") == 1
    assert reader.tags.count("caption") == reader.tags.count("thead") == 6


def test_nothing_is_loaded_and_nothing_runs():
    html = page(made())
    assert not re.search(r"https?://|//[a-z]|url\((?!#)|@import|src=|href=\"(?!#)", html)
    assert "script" not in Reader(html).tags
    assert "default-src 'none'" in html


def test_what_comes_from_data_is_escaped():
    evil = result(EVIL, (2.0,), samples=(EVIL,))
    other = result("b", failed=EVIL)
    found = comparison(evil, other, title=EVIL, given=(EVIL,))
    reader = Reader(page(found))
    assert reader.open == []
    assert not {"script", "img"} & {*reader.tags}
    assert not any(name.startswith("on") for name in reader.attributes)
    assert " ".join(reader.words).count(EVIL) >= 4


def test_half_a_character_does_not_break_the_page():
    html = page(comparison(result("a", samples=("\ud83d",)), result("b")))
    assert "?" in html.encode("utf-8").decode("utf-8")


@pytest.mark.parametrize("names", [("lstm",), ("ngram",)])
def test_one_model_alone_has_a_report(names):
    found = [result(name, parameters=0 if name == "ngram" else 10) for name in names]
    assert Reader(page(comparison(*found))).open == []


def test_when_all_failed_the_page_says_so():
    text = " ".join(Reader(page(comparison(result("a", failed="why"), given=()))).words)
    assert "a could not be compared: why" in text


def test_a_dashed_line_stands_where_the_rows_that_were_trained_on_end():
    html = page(comparison(result("conv"), result("lstm", trained_on=0)))
    assert "longer than conv had in training" in html
    assert html.count("stroke-dasharray") == 1
    for rows in (0, 24, 32):  # nobody's, within a bucket, at the end of all
        html = page(comparison(result("conv", trained_on=rows)))
        assert "dashed line" not in html
        assert "stroke-dasharray" not in html


def test_a_line_may_end_before_others():
    html = page(comparison(result("gpt2", lengths=(2.0,)), result("lstm", lengths=(2.0, 2.5))))
    assert "lstm: 2.50 at 17–32" in html


def test_pairs_too_short_for_bleu_are_ranked_by_chrf_and_have_no_interval():
    pair = replace(result("rnn", (20.0,), key="chrf"), lengths=None)
    found = comparison(pair, pairs=True)
    assert found.metric.key == "chrf"
    html = page(found)
    assert "chrF" in html
    assert "BLEU" not in html
    assert "resampled" not in html


def test_pairs_have_references_and_buckets_of_sources():
    pair = result("rnn", (20.0,), key="bleu", lengths=(20.0, 10.0), margin=1.0)
    text = " ".join(Reader(page(comparison(pair, pairs=True, gold=("so",)))).words)
    for words in ("reference", "tokens of the source", "BLEU", "6–20"):
        assert words in text


def test_every_chart_says_in_words_what_it_shows_and_figures_stand_on_the_right():
    html = page(made())
    charts = re.findall(r"<svg[^>]*>", html)
    assert len(charts) == 9
    assert all('role="img" aria-label="' in one for one in charts)
    counted = next(one for one in charts if "Reading n tokens, counted" in one)
    assert "lstm 64 at 64, 512 at 512; transformer 4,096 at 64, 262.1k at 512" in counted
    assert any("lstm 2.05; " in one or "lstm 2.050; " in one for one in charts)  # the ranking
    scrolled = re.findall(r'<div class="scroll"[^>]*>', html)  # who has no mouse scrolls by keys
    assert all('tabindex="0" role="region" aria-label="' in one for one in scrolled)
    for cell in re.findall(r"<td class=\"([^\"]*)\">[\d.,]+(?: ± [\d.]+)?</td>", html):
        assert "n" in cell.split()


def drawn(*lines, x=None, y=None, **more):
    series = [Series(f"m{i}", i, line) for i, line in enumerate(lines)]
    log = Axis("x", log=True), Axis("y", log=True)
    return chart("title", series, x or log[0], y or log[1], **more).drawn


def path_of(svg, colour):
    """Where a line goes: its pieces, each as points."""
    (path,) = re.findall(rf'<path d="([^"]+)"[^>]*fill: none; stroke: var\(--c{colour}\)', svg)
    pieces = re.split(r"M ", path)[1:]
    return [
        [tuple(map(float, point.split())) for point in piece.strip().split(" L ")]
        for piece in (re.sub(r"\s+", " ", piece) for piece in pieces)
    ]


def test_a_line_is_drawn_where_its_figures_are():
    (points,) = path_of(drawn(Line((1, 10, 100), (1.0, 10.0, 100.0))), 0)
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.01)  # equal ratios are equal steps
    assert y1 - y0 == pytest.approx(y2 - y1, abs=0.01)
    assert x0 < x1
    assert y0 > y1


def test_figures_that_are_missing_leave_a_gap_and_no_error():
    gap = Line((1, 2, 4, 8), (1.0, math.nan, 3.0, 4.0))
    none = Line((1, 2), (math.nan, math.nan))
    svg = drawn(gap, none, Line((1, 2), (0.0, 1.0)))  # a logarithm of 0 is none either
    assert [len(piece) for piece in path_of(svg, 0)] == [1, 2]
    assert re.findall("<title>(.*?)</title>", svg) == [
        "m0: 1 at 1",
        "m0: 3 at 4",
        "m0: 4 at 8",
        "m2: 1 at 2",
    ]
    assert "title: m0 1 at 1, 4 at 8; m2 1 at 2" in svg


def test_each_dot_has_the_words_of_its_own_figure():
    svg = drawn(Line((1, 2, 3, 4), (5.0, 7.0, 6.0, 8.0)), x=Axis("x"), y=Axis("y"))
    found = re.findall(r'<use [^>]*y="([0-9.]+)"[^>]*><title>m0: (\d) at (\d)</title>', svg)
    assert [at for _, _, at in found] == ["1", "2", "3", "4"]
    heights = {int(value): float(y) for y, value, _ in found}
    assert heights[8] < heights[7] < heights[6] < heights[5]


def test_the_page_gives_charts_their_colours_in_light_and_in_dark():
    html = page(made())
    for svg in re.findall("<svg.*?</svg>", html, re.S):
        assert "var(--c2)" in svg
        assert not re.findall(r"(?:fill|stroke|color): (?!none|var\()", svg)
    dark = html[html.index("prefers-color-scheme: dark") :]
    for name in {*re.findall(r"var\((--\w+)\)", html)}:
        assert f"{name}: #" in html[: html.index("prefers-color-scheme")]
        assert f"{name}: #" in dark


def test_the_same_figures_are_the_same_page_to_the_letter():
    assert page(made()) == page(made())


ANY = st.floats(-LARGEST, LARGEST) | st.sampled_from([0.0, 1e-300, math.nan])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(ANY, ANY, ANY.map(abs)), min_size=1, max_size=5), st.booleans())
def test_any_figures_are_drawn(points, log):
    x, y, spread = map(tuple, zip(*points, strict=True))
    svg = drawn(Line(x, y, spread), x=Axis("x", log=log, base=2), y=Axis("y", log=log))
    assert Reader(svg).open == []
    row = ("a", 0, [y for y in y if math.isfinite(y)] or [1.0], 1.0)
    assert Reader(dots("title", [row], Axis("x")).drawn).open == []


def test_a_name_that_would_break_a_chart_is_spelled_out_and_cut():
    names = ("\x1b[2J", "$a^", "<b>&", "\ud83d", "#c0000f", "x" * 500)
    svg = dots("title", [(name, i, [1.0], 0.0) for i, name in enumerate(names)], Axis("x")).drawn
    assert r"\x1b[2J</text>" in svg
    assert "$a^</text>" in svg
    assert "&lt;b&gt;&amp;</text>" in svg
    assert "x" * 30 not in re.sub('<title>.*?</title>|aria-label="[^"]*"', "", svg)


def test_the_figures_of_the_page_are_told_as_json_too():
    found = json.loads(json.dumps(made().figures(), allow_nan=False))
    lstm = found["results"][0]
    score = lstm["scores"]["bits_per_byte"]
    assert score["values"] == [2.0, 2.1]
    assert score["mean"] == pytest.approx(2.05)
    assert score["deviation"] == pytest.approx(0.0707, abs=1e-4)
    assert lstm["context"]["x"] == [1, 2, 4, 8]
    assert found["metric"]["name"] == "bits per byte"
