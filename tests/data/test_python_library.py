"""The corpus that every interpreter carries."""

from pathlib import Path

import pytest

from regard.data.builtin.python_library import files
from regard.errors import RegardError


def made(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("pass\n")


def test_the_library_is_a_corpus_of_megabytes_with_documentation_and_no_tests():
    found = files()
    names = {path.as_posix() for path in found}
    assert len(found) > 300
    assert sum(path.stat().st_size for path in found) > 5_000_000
    for wanted in ("/argparse.py", "/json/decoder.py", "/pydoc_data/topics.py"):
        assert any(name.endswith(wanted) for name in names)
    assert not any("-packages/" in name for name in names)
    # `test_*` modules live in test folders only; one would mean that such a folder slipped in.
    assert not [path for path in found if path.name.startswith("test_")]


def test_nearly_all_of_it_is_utf_8():
    def decodes(path: Path) -> bool:
        try:
            path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            return False
        return True

    assert sum(not decodes(path) for path in files()) <= 2


def test_the_order_is_that_of_the_relative_paths(tmp_path):
    made(tmp_path, "b.py", "a/z.py", "a.py", "a/b/c.py", "B.py")
    found = [path.relative_to(tmp_path).as_posix() for path in files(tmp_path)]
    assert found == ["B.py", "a.py", "a/b/c.py", "a/z.py", "b.py"]


def test_tests_packages_caches_and_other_files_are_left_out(tmp_path):
    root = tmp_path / "test" / "lib"  # only folders within the library count
    made(
        root,
        "contest.py",
        "test/regrtest.py",
        "unittest/test/support.py",
        "lib2to3/tests/data/bom.py",
        "idlelib/idle_test/mock.py",
        "site-packages/torch/nn.py",
        "dist-packages/apt.py",
        "json/__pycache__/odd.py",
        "LICENSE.txt",
    )
    (root / "dangling.py").symlink_to(root / "nowhere.py")
    assert files(root) == [root / "contest.py"]


@pytest.mark.parametrize("folder", ["", "python311.zip"])
def test_an_interpreter_without_source_is_reported_in_one_sentence(tmp_path, folder):
    with pytest.raises(RegardError, match=r"no source of its library in .*; give text files"):
        files(tmp_path / folder)
