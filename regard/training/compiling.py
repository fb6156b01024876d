"""torch.compile, with its cache in a folder that nobody else can write to.

torch keeps code, and pickles, in /tmp/torchinductor_USER, a name that any user of the machine may
take first. What it finds there is executed.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import cast

import torch
from torch import nn

from regard.storage import is_private, private_folder

FOLDER = "TORCHINDUCTOR_CACHE_DIR"


def compiled(module: nn.Module) -> nn.Module:
    """The module, compiled when it is first called."""
    from torch._inductor import config
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    usual = default_cache_dir()
    if os.environ.get(FOLDER, usual) == usual:  # which torch itself writes there when imported
        os.environ[FOLDER] = str(private_folder("compiled") or _passing_folder())
    if not is_private(Path(usual)):  # headers for a CPU are there, whatever is named
        config.cpp_cache_precompile_headers = False
    return cast(nn.Module, torch.compile(module))


def _passing_folder() -> str:
    """A private folder that is removed when the process ends: each process compiles anew."""
    folder = tempfile.mkdtemp(prefix="regard-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
