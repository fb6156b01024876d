"""What lies in the cache is believed, so nobody else may be able to put anything there."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest

from regard.data.readers.texts import gather
from regard.data.token_files import prepare
from regard.errors import RegardError
from regard.storage import cache, cache_folder, private_folder
from regard.text.learning import learn


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Where the cache is, not there yet."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def made(folder: Path, mode: int) -> Path:
    folder.mkdir()
    folder.chmod(mode)
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def check_refused(path: Path, why: str = "can be written to by everybody") -> None:
    with pytest.raises(RegardError) as told:
        cache_folder()
    assert str(told.value).startswith(f"the cache {path} {why}, so that others ")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_a_cache_that_is_not_there_is_made_for_us_alone(folder, mask):
    before = os.umask(mask)
    try:
        assert cache_folder() == folder
    finally:
        os.umask(before)
    assert mode(folder) == 0o700


@pytest.mark.parametrize("rights", [0o700, 0o755, 0o775, 0o2775])
def test_a_cache_of_ours_is_used_and_so_is_one_that_its_owner_shares_with_a_group(folder, rights):
    made(folder, rights)
    assert cache_folder() == folder
    assert mode(folder) == rights


@pytest.mark.parametrize("rights", [0o700, 0o755, 0o777, 0o1777])
def test_the_cache_of_another_user_is_refused(folder, rights, monkeypatch):
    made(folder, rights)
    if os.geteuid():  # or else it is given away
        monkeypatch.setattr(cache, "TRUSTED", {0, os.geteuid() + 1})
    else:
        os.chown(folder, 12345, 12345)
    check_refused(folder, "belongs to another user")


def test_a_cache_that_everybody_can_write_to_is_refused(folder):
    check_refused(made(folder, 0o777))


def test_a_link_that_another_user_made_is_not_followed(folder, tmp_path, monkeypatch):
    folder.symlink_to(made(tmp_path / "mine", 0o700))
    assert cache_folder() == folder
    lstat, other = os.lstat, os.stat_result([0o120777, 0, 0, 1, 54321, *[0] * 5])
    monkeypatch.setattr(os, "lstat", lambda path: other if path == folder else lstat(path))
    check_refused(folder, "belongs to another user")


def test_in_a_shared_cache_each_user_has_a_folder_of_their_own(folder):
    made(folder, 0o1777)
    own = folder / f"regard-{os.geteuid()}"
    assert [cache_folder(), cache_folder()] == [own, own]
    assert mode(own) == 0o700
    own.chmod(0o777)
    check_refused(own)
    own.rmdir()
    own.symlink_to(made(folder.with_name("mine"), 0o700))
    check_refused(own)


def test_what_another_user_planted_in_a_shared_cache_is_not_taken_for_prepared_data(
    folder, tmp_path, monkeypatch
):
    (tmp_path / "text.txt").write_text("the cat sat on the mat\n" * 20)
    texts, how = gather([tmp_path / "text.txt"]), learn("char", ["the cat sat on the mat\n"])
    (tmp_path / "other.txt").write_text("a dog\n" * 20)
    made(folder, 0o1777)
    monkeypatch.setattr(texts.__class__, "digest", "as planted")
    prepare(gather([tmp_path / "other.txt"]), how, cache=folder)
    planted = prepare(texts, how, cache=folder)["train"].read(0, 99)
    found = prepare(texts, how)["train"].read(0, 99)
    assert not np.array_equal(found, planted)
    assert found.tolist()[1:4] == how.encode("the").tolist()


def test_what_is_executed_lies_where_we_alone_can_write(folder, tmp_path):
    inner = private_folder("compiled")
    assert inner == folder / "compiled"
    assert mode(inner) == 0o700
    inner.chmod(0o770)
    assert private_folder("compiled") is None
    inner.rmdir()
    inner.symlink_to(tmp_path)
    assert private_folder("compiled") is None
    inner.unlink()
    folder.chmod(0o2775)  # a group's tokens are believed; what it would have us run is not
    assert private_folder("compiled") is None
    folder.chmod(0o777)
    assert private_folder("compiled") is None
