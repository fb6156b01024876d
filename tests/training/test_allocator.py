"""Freed memory stays with a process that asked for it."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from regard.training.memory.allocator import keep_freed
kept = keep_freed() if sys.argv[1] == "kept" else False
def step():
    return torch.ones(12 << 20).sum()  # 48 MiB, beyond what malloc keeps by itself
for _ in range(10):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    step()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc alone can")
def test_what_is_freed_is_used_again_without_asking_the_system():
    found = {}
    for how in ("kept", "given back"):
        command = [sys.executable, "-c", PROGRAM, how]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        found[how] = out[0], int(out[1])
    if found["kept"][0] != "True":
        pytest.skip("this system's allocator cannot")
    pages = 100 * (48 << 20) // 4096
    assert found["kept"][1] < pages / 50  # once, of five steps, one took all its pages anew
    assert found["given back"][1] > 10 * max(found["kept"][1], 1)
