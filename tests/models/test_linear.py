"""The product of every layer, where a vocabulary's matrix is evened out for a GPU."""

import pytest
import torch
from torch.nn import functional as F

from regard.models.linear import _evened


@pytest.mark.parametrize("outputs", [1, 63, 65, 1003])
@pytest.mark.parametrize("biased", [True, False])
def test_rows_of_zeros_change_neither_the_product_nor_its_gradients(outputs, biased):
    torch.manual_seed(0)
    x, weight = torch.randn(3, 5, 16), torch.randn(outputs, 16)
    bias = torch.randn(outputs) if biased else None
    given = [tensor for tensor in (x, weight, bias) if tensor is not None]
    found = []
    for product in (F.linear, _evened):
        for tensor in given:
            tensor.requires_grad_().grad = None
        y = product(x, weight, bias)
        assert y.shape == (3, 5, outputs)
        (y * torch.arange(outputs)).sum().backward()
        found.append([y.detach(), *(tensor.grad for tensor in given)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
