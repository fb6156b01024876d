"""Settings for all tests: one thread each (they run in parallel), and a fixed seed."""

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("regard", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("regard")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
