"""Memory that nobody has written to, made visible."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="module")
def poisoned() -> Iterator[None]:
    """What is not written yet is NaN: whoever reads it has no numbers any more."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert bool(torch.empty(3).isnan().all())
        yield
    finally:
        torch.use_deterministic_algorithms(False)
