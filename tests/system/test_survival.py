"""A run that is killed, anywhere, and started again by the same command, ends as if it had not.

`make soak` tries many more moments: it sets REGARD_SEEDS.
"""

import os
import random

import pytest
from tiny_runs import KINDS, left, made

SEEDS = int(os.environ.get("REGARD_SEEDS", "20"))


@pytest.mark.parametrize("kind", KINDS)
def test_an_unbroken_run_is_the_same_each_time(nursery, whole, kind, tmp_path):
    command = made(tmp_path / "again", kind)
    assert nursery.run(tmp_path / "again", *command).code == 0
    assert left(tmp_path / "again" / "run") == whole(kind).left


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_run_that_is_killed_anywhere_ends_as_if_it_had_not(nursery, whole, seed, tmp_path):
    rng = random.Random(seed)
    kind = list(KINDS)[seed % len(KINDS)]
    expected, folder = whole(kind), tmp_path / "broken"
    command, kills = made(folder, kind), 0
    for _ in range(rng.randint(1, 4)):
        if rng.random() < 0.7:  # at an operation on a file: caching, logging, saving, removing
            how = {"at": rng.randint(1, expected.operations)}
        else:
            how = {"after": rng.uniform(0.05, expected.seconds)}
        ended = nursery.run(folder, *command, **how)
        assert ended.code in (0, -9), (how, ended.out)
        kills += ended.code == -9
    ended = nursery.run(folder, *command)
    assert ended.code == 0, ended.out
    assert left(folder / "run") == expected.left
