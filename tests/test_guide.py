"""The pages say only what runs and what exists."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import torch

import regard
from regard.cli import COMMANDS
from regard.families.settings import FORMER, Settings
from regard.models.registry import FAMILIES, defaults
from regard.runs import recipes

ROOT = Path(__file__).parent.parent
GUIDE = sorted(f"docs/guide/{page.name}" for page in (ROOT / "docs/guide").glob("*.md"))
PAGES = ["README.md", "CONTRIBUTING.md", "docs/guide.md", "docs/map.md", *GUIDE]
NO_SETTINGS = {"md", "safetensors", "arpa", "json", "generate"}  # as in model.safetensors


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def snippets(name):
    return re.findall(r"```python\n(.*?)```", read(name), re.S)


def prose(name):
    """A page without its Python."""
    return re.sub(r"```python\n.*?```", "", read(name), flags=re.S)


def commands(name):
    """The commands that a page shows: [name, argument, …], lines that go on joined."""
    shown = re.findall(
        r"^ {4}(?:\S+/)?(?:torchrun .*?--no-python )?regard ((?:.*\\\n)*.*)$", read(name), re.M
    )
    return [re.sub(r"\\\n|(?<= )#.*", " ", line).split() for line in shown]


@pytest.mark.parametrize("page", [page for page in GUIDE if snippets(page)])
def test_every_snippet_of_the_guide_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    names: dict[str, object] = {}
    for snippet in snippets(page):
        exec(compile(snippet, page, "exec"), names)
    for picture in tmp_path.glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_readme_snippet_runs_on_a_real_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    regard.save(regard.build(regard.preset("gpt2-tiny")), "path/to/hugging-face-folder")
    tokens = torch.randint(0, 256, (1, 8))
    names = {"tokens": tokens, "prompt": tokens, "next_token": tokens[:, :1]}
    (snippet,) = snippets("README.md")
    exec(compile(snippet, "README", "exec"), names)
    assert names["logits"].shape == (1, 1, 256)


def test_what_the_guide_says_of_selectable_keys_is_true():
    (snippet,) = (text for text in snippets("docs/guide/tape.md") if "corners" in text)
    names = {"torch": torch}
    exec(compile(snippet, "tape.md", "exec"), names)
    selectable, normalised, keys = (names[n] for n in ("selectable", "normalised", "keys"))
    assert selectable(keys).tolist() == [True, True, True, True, False]
    assert selectable(normalised(keys)).tolist() == [True] * 5


def test_the_recipe_of_the_guide_loads(tmp_path):
    (recipe,) = re.findall(r"```toml\n(.*?)```", read("docs/guide/settings.md"), re.S)
    (tmp_path / "mine.toml").write_text(recipe)
    settings = recipes.load(str(tmp_path / "mine.toml"))
    assert (settings.training.steps, settings.tokenizer.kind) == (500, "char")


def options(command):
    """The options of a command, by its fields."""
    own = {f"--{field.name.replace('_', '-')}" for field in fields(COMMANDS[command].load())}
    return own | {"--help", "-o"}


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_option_shown_exists(page):
    for name, *arguments in commands(page):
        assert name in COMMANDS, name
        typed = {word.partition("=")[0] for word in arguments if re.match("--?[a-z]", word)}
        assert typed <= options(name), (name, typed - options(name))


@pytest.mark.parametrize("page", PAGES)
def test_every_option_that_a_sentence_names_exists(page):
    sentences = re.sub(r"^ {4}.*$", "", prose(page), flags=re.M)
    known = set().union(*map(options, COMMANDS))
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", sentences)) <= known


def test_commands_are_found_on_the_pages():
    assert len(commands("README.md")) > 5
    assert {name for page in GUIDE for name, *_ in commands(page)} == set(COMMANDS)


def settings_known(former):
    """Each table's keys; of a model those of every family, with `former` the former names too."""
    settings = Settings()
    known = {f.name: {g.name for g in fields(getattr(settings, f.name))} for f in fields(settings)}
    for family in FAMILIES:
        known["model"] |= {f.name for f in fields(defaults(family))}
    return {
        table: keys | set(FORMER.get(table, ()) if former else ()) for table, keys in known.items()
    }


@pytest.mark.parametrize("page", ["README.md", *GUIDE])
def test_every_setting_named_exists(page):
    known = settings_known(former=page.endswith("settings.md"))
    for table, key in re.findall(r"(?<![\w./])(\w+)\.([a-z_]\w*)", prose(page)):
        fine = table not in known or key in known[table] | NO_SETTINGS
        assert fine, f"{table}.{key}"


@pytest.mark.parametrize("page", PAGES)
def test_every_link_between_our_pages_leads_somewhere(page):
    for target, heading in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", read(page)):
        if target.startswith("http"):
            continue
        found = (ROOT / page).parent / target if target else ROOT / page
        assert found.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)$", found.read_text(encoding="utf-8"), re.M)
            assert heading in [re.sub(r"[^\w -]", "", t).lower().replace(" ", "-") for t in titles]


def test_the_contents_name_every_page_once():
    linked = re.findall(r"\]\((guide/[^)]+)\)", read("docs/guide.md"))
    assert sorted(f"docs/{page}" for page in linked) == GUIDE
    for page in GUIDE:
        assert "[Contents](../guide.md)" in read(page)


def test_pages_are_short():
    assert len(read("README.md").splitlines()) <= 120
    assert max(len(read(page).splitlines()) for page in GUIDE) <= 150
    assert max(map(len, read("docs/map.md").splitlines())) <= 160


def test_the_map_has_every_row_and_what_it_names_exists():
    rows = re.findall(r"^\| (M\d+) \|", read("docs/map.md"), re.M)
    assert list(dict.fromkeys(rows)) == [f"M{i}" for i in range(1, 26)]
    named = re.findall(r"`([^`]+)`", read("docs/map.md"))
    paths = [name for name in named if re.fullmatch(r"[\w./-]+/[\w./-]+", name)]
    assert len(paths) > 150
    assert [path for path in paths if not (ROOT / path).is_file()] == []
    shown = [name.split()[1] for name in named if name.startswith("regard ")]
    assert set(shown) <= set(COMMANDS)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *GUIDE])
def test_every_file_of_ours_that_is_named_exists(page):
    named = re.findall(r"(?<![\w./])((?:regard|tests|bench|docs)/[\w./]*\w)", prose(page))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_tree_is_the_house_in_the_order_of_imports():
    tree = re.search(r"^    regard/\n(.*?)\n\n", read("CONTRIBUTING.md"), re.M | re.S)[1]
    shown = re.findall(r"^ {6}(\w+)(?:/|\.py) ", tree, re.M)
    there = {path.parent.name for path in (ROOT / "regard").glob("*/*") if path.is_file()}
    there |= {path.stem for path in (ROOT / "regard").glob("*.py")}
    assert sorted(shown) == sorted(there - {"__init__", "__main__", "__pycache__"})
    (layers, *_) = tomllib.loads(read("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    order = [name for layer in reversed(layers["layers"]) for name in re.findall(r"\.(\w+)", layer)]
    assert [name for name in shown if name in order] == [name for name in order if name in shown]


def test_no_figure_was_left_to_be_filled_in():
    assert not re.findall(r"\| [A-Z]+_[A-Z]+ \|", read("README.md"))
