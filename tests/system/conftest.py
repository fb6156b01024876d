"""What tests of whole runs share."""

from collections.abc import Callable, Iterator

import pytest
from nursery import Nursery
from tiny_runs import Whole


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.fixture(scope="session")
def whole(nursery, tmp_path_factory) -> Callable[[str], Whole]:
    """Unbroken runs by kind, each made once."""
    runs: dict[str, Whole] = {}

    def of(kind: str) -> Whole:
        if kind not in runs:
            runs[kind] = Whole(nursery, tmp_path_factory.mktemp("whole") / kind, kind)
        return runs[kind]

    return of
