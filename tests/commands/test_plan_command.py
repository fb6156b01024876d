"""Plans: a model, tokens and steps for some text and some time."""

import json
from dataclasses import replace

import pytest
from command_line import call, mistake

from regard.commands.plan import budget_of
from regard.cost.device.ceilings import device_named, of_sheet
from regard.cost.model_choice import PASSES, TOKENS_PER_PARAMETER, plan
from regard.errors import RegardError

HOUR = 3600.0


def test_more_time_gives_a_larger_model_and_never_more_than_the_time():
    device = of_sheet("h200")
    found = [plan(10**10, hours * HOUR, device, "bf16") for hours in (0.05, 0.5)]
    assert found[0].choice.parameters < found[1].choice.parameters
    for one, hours in zip(found, (0.05, 0.5), strict=True):
        assert one.hours <= hours
        assert one.choice.wanted == TOKENS_PER_PARAMETER * one.choice.parameters
        assert one.tokens >= one.choice.wanted


def test_little_text_gives_a_small_model_that_reads_it_a_few_times():
    found = plan(4_000_000, HOUR, of_sheet("h200"), "bf16")
    assert found.choice.name == "regard-1"
    assert found.passes <= PASSES
    assert any("text" in reason for reason in found.reasons)


@pytest.mark.parametrize("size", [1_000, 49_000, 400_000])
def test_little_text_is_read_in_many_small_steps_and_not_too_often(size):
    found = plan(size, 2 * HOUR, of_sheet("h200"), "bf16")
    assert found.tokens == found.steps * found.tokens_per_step
    assert found.passes == pytest.approx(found.tokens / (size // 4))
    assert found.passes <= PASSES
    assert found.steps >= (100 if size > 10_000 else 10)
    assert any("text and not time decides" in reason for reason in found.reasons)


def test_no_time_for_one_step_and_no_text_for_one_are_refused():
    with pytest.raises(RegardError, match="not enough time for one step"):
        plan(10**7, 0.001, device_named("cpu-2"), "float32")
    with pytest.raises(RegardError, match="not enough text for one step"):
        plan(8, HOUR, device_named("cpu-2"), "float32")


def test_reasons_are_wrapped_at_the_width_of_the_terminal(tmp_path):
    (tmp_path / "text.txt").write_text("the cat sat on the mat\n" * 1000)
    said = call("plan", tmp_path / "text.txt", "--budget", "1m", "--device", "cpu")
    reasons = said.out[said.out.index("because") : said.out.index("next:")]
    assert max(map(len, reasons.splitlines())) <= 80


def test_what_does_not_fit_at_once_is_taken_in_parts():
    wide = device_named("cpu-2")
    plenty, little = (
        plan(10**6, HOUR, replace(wide, memory=memory), "float32") for memory in (10**12, 5 * 10**7)
    )
    assert little.choice.rows < plenty.choice.rows
    assert little.choice.memory <= 5 * 10**7
    with pytest.raises(RegardError, match="no room"):
        plan(10**6, HOUR, replace(wide, memory=1000), "float32")


def test_times_are_read_as_people_write_them():
    assert [budget_of(t) for t in ("90s", "30m", "2h", "1.5d")] == [90, 1800, 7200, 129600]
    for wrong in ("", "2", "h", "0h", "-1h", "2 weeks"):
        with pytest.raises(RegardError, match="90s"):
            budget_of(wrong)


def test_the_command_says_what_and_why(tmp_path):
    (tmp_path / "text.txt").write_text("the cat sat on the mat\n" * 1000)
    said = call("plan", tmp_path / "text.txt", "--budget", "1m", "--device", "cpu")
    assert said.code == 0, said.err
    for word in ("regard-1", "because", "Hoffmann", "regard train", "--steps"):
        assert word in said.out
    found = json.loads(call("plan", tmp_path / "text.txt", "--json", "--device", "h200").out)
    assert found["choice"]["parameters"] > 0
    assert "no time" in mistake(call("plan", tmp_path / "text.txt", "--budget", "soon"))
    assert "name the text" in mistake(call("plan"))
