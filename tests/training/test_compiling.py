"""What torch compiles, and executes the next time, lies where nobody else can put anything."""

import os
import stat
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._inductor import config
from torch._inductor.runtime.cache_dir_utils import cache_dir, default_cache_dir

from regard.training import compiling
from regard.training.compiling import FOLDER, compiled


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch, tmp_path):
    """Nothing is compiled, and folders for what passes are made and left in `tmp_path`."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(FOLDER, "")
    monkeypatch.delenv(FOLDER)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(torch, "compile", lambda module: module)
    with config.patch(cpp_cache_precompile_headers=True):
        yield


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_that_the_user_named_stays(monkeypatch):
    monkeypatch.setenv(FOLDER, "/somewhere")
    compiled(nn.Identity())
    assert os.environ[FOLDER] == "/somewhere"


@pytest.mark.parametrize("imported", [False, True])
def test_torch_looks_in_a_folder_of_the_cache_that_is_ours_alone(imported, tmp_path):
    if imported:  # as by an optimizer, before anything is compiled
        assert cache_dir() == default_cache_dir() == os.environ[FOLDER]
    compiled(nn.Identity())
    assert cache_dir() == str(tmp_path / "cache" / "compiled")
    assert rights(tmp_path / "cache" / "compiled") == 0o700
    assert config.cpp_cache_precompile_headers


def test_where_the_cache_is_not_ours_alone_the_folder_goes_with_the_process(tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o2775)
    at_exit = []
    monkeypatch.setattr(compiling.atexit, "register", lambda *what, **how: at_exit.append(what))
    compiled(nn.Identity())
    folder = Path(cache_dir())
    assert folder.parent == tmp_path
    assert rights(folder) == 0o700
    ((remove, removed),) = at_exit
    assert Path(removed) == folder
    assert remove is compiling.shutil.rmtree


def test_headers_that_another_user_may_have_planted_are_not_compiled_with():
    Path(default_cache_dir()).mkdir()
    Path(default_cache_dir()).chmod(0o777)
    compiled(nn.Identity())
    assert not config.cpp_cache_precompile_headers
