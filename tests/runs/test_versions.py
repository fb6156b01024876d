import pytest

from regard.runs.versions import checked_out, versions

COMMIT, OTHER = "1f" * 20, "e0" * 20


def made(folder, **files):
    """A checkout with these files of git's, slashes in whose names are written as __."""
    for name, text in files.items():
        path = folder / ".git" / name.replace("__", "/").replace("_", "-")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


BRANCH = f"# pack-refs with: peeled\n{OTHER} refs/heads/mainly\n{COMMIT} refs/heads/main\n"


@pytest.mark.parametrize(
    "files",
    [
        {"HEAD": f"{COMMIT}\n"},
        {"HEAD": "ref: refs/heads/main\n", "refs__heads__main": f"{COMMIT}\n"},
        {"HEAD": "ref: refs/heads/main\n", "packed_refs": BRANCH},
    ],
)
def test_a_commit_is_read_from_the_files_of_a_checkout(tmp_path, files):
    assert checked_out(made(tmp_path, **files)) == COMMIT


def test_a_second_checkout_reads_the_branches_of_the_first(tmp_path):
    first = made(tmp_path / "first", refs__heads__main=COMMIT)
    store = first / ".git" / "worktrees" / "second"
    store.mkdir(parents=True)
    (store / "HEAD").write_text("ref: refs/heads/main\n")
    (store / "commondir").write_text("../..\n")
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / ".git").write_text(f"gitdir: {store}\n")
    assert checked_out(tmp_path / "second") == COMMIT


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"HEAD": "\x1b]0;no commit"},
        {"HEAD": "ref: refs/heads/none"},
        {"HEAD": "ref: refs/heads/main", "refs__heads__main": "\x1b[31m"},
        {"HEAD": "ref: refs/heads/main", "packed_refs": f"{'x' * 40} refs/heads/main"},
    ],
)
def test_what_is_no_commit_is_not_taken_for_one(tmp_path, files):
    assert checked_out(made(tmp_path, **files)) == ""


def test_versions_name_the_code_that_ran():
    assert {"python", "torch", "regard", "tokenizers", "numpy"} <= set(versions())
