"""The guide and the README say only what runs."""

import re
from pathlib import Path

import pytest
import torch

import regard
from regard.cli import COMMANDS
from regard.runs import recipes

ROOT = Path(__file__).parent.parent


def snippets(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.S)


def test_every_snippet_of_the_guide_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    names: dict[str, object] = {}
    for snippet in snippets("docs/guide.md"):
        exec(compile(snippet, "guide.md", "exec"), names)
    assert (tmp_path / "cross.png").read_bytes().startswith(b"\x89PNG")


def test_the_readme_snippet_runs_on_a_real_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    regard.save(regard.build(regard.preset("gpt2-tiny")), "path/to/hugging-face-folder")
    tokens = torch.randint(0, 256, (1, 8))
    names = {"tokens": tokens, "prompt": tokens, "next_token": tokens[:, :1]}
    (snippet,) = snippets("README.md")
    exec(compile(snippet.replace('preset("gpt2")', 'preset("gpt2-tiny")'), "README", "exec"), names)
    assert names["logits"].shape == (1, 1, 256)


def test_what_the_guide_says_of_selectable_keys_is_true():
    (snippet,) = (text for text in snippets("docs/guide.md") if "corners" in text)
    names = {"torch": torch}
    exec(compile(snippet, "guide.md", "exec"), names)
    selectable, normalised, keys = (names[n] for n in ("selectable", "normalised", "keys"))
    assert selectable(keys).tolist() == [True, True, True, True, False]
    assert selectable(normalised(keys)).tolist() == [True] * 5


def test_the_recipe_of_the_guide_loads(tmp_path):
    text = (ROOT / "docs/guide.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"```toml\n(.*?)```", text, re.S)
    (tmp_path / "mine.toml").write_text(recipe)
    settings = recipes.load(str(tmp_path / "mine.toml"))
    assert (settings.training.steps, settings.tokenizer.kind) == (500, "char")


@pytest.mark.parametrize("page", ["README.md", "docs/guide.md"])
def test_every_command_shown_exists(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    shown = re.findall(r"^    (?:\.venv/bin/)?regard (\S+)", text, re.M)
    assert len(shown) > 2
    assert set(shown) <= set(COMMANDS)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/map.md", "docs/guide.md"])
def test_every_link_between_our_pages_leads_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / page).parent.joinpath(target).exists(), target


def test_the_map_has_every_row_once():
    rows = re.findall(r"^\| (M\d+) \|", (ROOT / "docs/map.md").read_text(encoding="utf-8"), re.M)
    assert rows == [f"M{i}" for i in range(1, 26)]


def test_no_figure_was_left_to_be_filled_in():
    assert not re.findall(r"\| [A-Z]+_[A-Z]+ \|", (ROOT / "README.md").read_text(encoding="utf-8"))
