"""The demo does the main job end to end: here with a small text and a few steps."""

import sys

import pytest

from regard import demo


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")
    text = tmp_path / "small.py"
    text.write_text("import os\n\nfor i in range(10):\n    raise ValueError(i)\n" * 300)
    return (
        f"data.train=['{text}']",
        "data.held_out=0.1",
        "tokenizer.vocabulary=300",
        "model.layers=1",
        "model.width=32",
        "model.heads=2",
        "model.hidden=64",
        "training.steps=250",
        "training.tokens_per_step=1024",
    )


def test_it_trains_completes_every_prompt_and_says_what_next(tmp_path, small, capsys):
    demo.main(small, tmp_path / "run")
    shown = capsys.readouterr().out
    order = [
        shown.index("learns Python"),
        shown.index("finished at step 250"),
        shown.index("bits/byte", shown.index("finished")),
        shown.index("What it writes"),
        shown.index("train notes.txt"),
        shown.index("train --pairs"),
    ]
    assert order == sorted(order)
    written = shown[shown.index("What it writes") :]
    assert all(prompt in written for prompt in demo.PROMPTS)
    assert "raise ValueError(i)" in written  # the only way this text ever goes on
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_a_second_demo_takes_the_place_of_the_first(tmp_path, small, capsys):
    for _ in range(2):
        demo.main((*small, "training.steps=2"), tmp_path / "run")
    assert capsys.readouterr().out.count("finished at step 2") == 2


def test_a_mistake_is_one_sentence_and_exit_code_2(tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_:
        demo.main(("training.stepz=1",), tmp_path / "run")
    assert exit_.value.code == 2
    assert "did you mean 'steps'" in capsys.readouterr().err


def test_the_commands_it_names_begin_with_the_programme_of_this_environment(tmp_path):
    for command, _ in demo.next_steps(tmp_path):
        assert command.split()[0].endswith("regard")
    assert sys.executable
