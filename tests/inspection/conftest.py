"""What the tests of the tape share."""

import pytest
import torch
from recorded_texts import Text


@pytest.fixture
def text() -> Text:
    torch.manual_seed(2)
    return Text(torch.randint(3, 64, (3, 9)), torch.randint(3, 64, (3, 7)))
