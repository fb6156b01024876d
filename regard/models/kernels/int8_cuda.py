"""Products with int8 weights on a GPU that reads the weights as they are, once.

Without it they would be written out as floats for each product, five times the traffic. Few rows
alone: with many it is the arithmetic that takes the time, and cuBLAS is better at that.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = (16, 32, 64)  # of one tile: the fewest that tensor cores take, and more
OUTPUTS, INPUTS, WARPS, STAGES = 16, 256, 4, 3  # of one tile, and how it is computed


@triton.jit
def _product(
    x,
    weight,
    scale,
    bias,
    y,
    rows,
    inputs,
    outputs,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    BIASED: tl.constexpr,
):
    """A tile (ROWS, OUTPUTS) of y = x · weightᵀ · scale + bias."""
    row = tl.arange(0, ROWS)
    out = tl.program_id(0).to(tl.int64) * OUTPUTS + tl.arange(0, OUTPUTS)
    real, wanted = row < rows, out < outputs
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for first in range(0, inputs, INPUTS):
        place = first + tl.arange(0, INPUTS)
        inside = place < inputs
        a = tl.load(x + row[:, None] * inputs + place, mask=real[:, None] & inside, other=0.0)
        at = out[None, :] * inputs + place[:, None]
        w = tl.load(weight + at, mask=wanted & inside[:, None], other=0)
        total = tl.dot(a, w.to(a.dtype), total, input_precision="ieee")
    total *= tl.load(scale + out, mask=wanted, other=0.0)
    if BIASED:
        total += tl.load(bias + out, mask=wanted, other=0.0).to(tl.float32)
    to = y + row[:, None] * outputs + out
    tl.store(to, total.to(y.dtype.element_ty), mask=real[:, None] & wanted)


def product(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """x (rows, in), up to 64 rows; weight (out, in) int8, scale and bias (out,) -> (rows, out)."""
    rows, inputs = x.shape
    outputs = len(weight)
    y = x.new_empty(rows, outputs)
    with torch.cuda.device(x.device):
        _product[(triton.cdiv(outputs, OUTPUTS),)](
            x.contiguous(),
            weight,
            scale,
            scale if bias is None else bias,
            y,
            rows,
            inputs,
            outputs,
            ROWS=next(size for size in ROWS if rows <= size),
            OUTPUTS=OUTPUTS,
            INPUTS=INPUTS,
            BIASED=bias is not None,
            num_warps=WARPS,
            num_stages=STAGES,
        )
    return y


def works() -> bool:
    """Whether it computes here what it should, on the current device."""
    x = torch.arange(-3.0, 3.0, device="cuda").reshape(2, 3)
    weight = torch.arange(-6, 6, dtype=torch.int8, device="cuda").reshape(4, 3)
    scale = torch.arange(1.0, 5.0, device="cuda")
    wanted = x @ weight.T.float() * scale + scale
    return bool(torch.allclose(product(x, weight, scale, scale), wanted))
