"""The report: whole, escaped, and nothing to load."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from made_up import comparison, result

from regard.comparison.report.charts import Axis, Series, chart
from regard.comparison.report.page import page

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
    assert not re.search(r"https?://|//[a-z]|url\(|@import|src=|href=", html)
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
    assert html.count('class="border"') == 1
    for rows in (0, 24, 32):  # nobody's, within a bucket, at the end of all
        html = page(comparison(result("conv", trained_on=rows)))
        assert "dashed line" not in html
        assert 'class="border"' not in html


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
    charts = re.findall(r"<svg viewBox=\"0 0 520[^>]*>", html)
    assert len(charts) == 9
    assert all('role="img" aria-label="' in one for one in charts)
    counted = next(one for one in charts if "Reading n tokens, counted" in one)
    assert "lstm 64 at 64, 512 at 512; transformer 4,096 at 64, 262.1k at 512" in counted
    scrolled = re.findall(r'<div class="scroll"[^>]*>', html)  # who has no mouse scrolls by keys
    assert all('tabindex="0" role="region" aria-label="' in one for one in scrolled)
    for cell in re.findall(r"<td class=\"([^\"]*)\">[\d.,]+(?: ± [\d.]+)?</td>", html):
        assert "n" in cell.split()


def test_a_line_is_drawn_where_its_figures_are():
    series = [Series("a", 0, [1, 10, 100], [1.0, 10.0, 100.0])]
    drawn = chart(series, Axis("x", log=True), Axis("y", log=True), "alt")
    (points,) = re.findall(r'polyline points="([^"]+)"', drawn)
    (x0, y0), (x1, y1), (x2, y2) = (map(float, p.split(",")) for p in points.split())
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)  # equal ratios are equal steps
    assert y1 - y0 == pytest.approx(y2 - y1, abs=0.2)
    assert x0 < x1
    assert y0 > y1


def test_figures_that_are_missing_leave_a_gap_and_no_error():
    series = [Series("a", 0, [1, 2, 4], [None, 1.0, None]), Series("b", 1, [1, 2], [None, None])]
    drawn = chart(series, Axis("x", log=True), Axis("y", log=True), "alt")
    assert drawn.count("<title>") == 1


def test_the_figures_of_the_page_are_told_as_json_too():
    found = json.loads(json.dumps(made().figures(), allow_nan=False))
    lstm = found["results"][0]
    score = lstm["scores"]["bits_per_byte"]
    assert score["values"] == [2.0, 2.1]
    assert score["mean"] == pytest.approx(2.05)
    assert score["deviation"] == pytest.approx(0.0707, abs=1e-4)
    assert lstm["context"]["x"] == [1, 2, 4, 8]
    assert found["metric"]["name"] == "bits per byte"
