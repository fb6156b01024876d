"""Int8 weights for decoding: products in a quarter of the memory, a CPU's step in 0.6 of its time.

`quantise(model)` gives a copy whose products run on int8 weights, one scale to an output row:

    weight ≈ scale · weight8,   scale = max|row| / 127,   weight8 = round(row / scale)

On a CPU the vectors are rounded too, each by its own largest entry, so that the sums are of whole
numbers: a vector's result depends neither on its neighbours in the batch nor on the padding. On
other devices, and on a CPU without the kernel, only the weights are int8 and the product is made
in x's type. A GPU reads them as they are for up to 64 vectors (`int8_cuda.py`); for more they are
written out first, which saves memory and not time.

What decided (ms on one core of an AMD EPYC with avx512_vnni, by its CPU time; torch 2.13; weights
not in the cache; rows 1 / 32 / 256):

|                             | 512 → 512            | 2048 → 512           | 512 → 10000        |
|-----------------------------|----------------------|----------------------|--------------------|
| float32                     | 0.110 / 0.285 / 1.50 | 0.249 / 0.972 / 5.65 | 2.03 / 7.47 / 31.4 |
| here                        | 0.047 / 0.104 / 0.52 | 0.060 / 0.253 / 1.68 | 0.12 / 1.03 / 9.3  |
| the same by `torch._int_mm` | 0.056 / 0.124 / 0.54 | 0.053 / 0.433 / 1.83 | 0.40 / 1.62 / 9.1  |
| bfloat16                    | 0.099 / 0.201 / 0.77 | 0.217 / 0.496 / 2.72 | 1.20 / 2.75 / 14.9 |
| int8 weights × bfloat16     | 0.027 / 0.263 / 2.02 | 0.091 / 0.930 / 7.18 | 0.32 / 4.83 / 38.1 |
| `quantized.linear_dynamic`  | 0.027 / 0.075 / 0.40 | 0.037 / 0.215 / 1.48 | 0.09 / 1.18 / 8.6  |

The last takes one scale for the whole batch, so that a row's neighbours change its result.
"""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import RegardError
from regard.models.kernels.converted import Converted, M, converted
from regard.models.kernels.switches import PLAIN

MOST = 127  # int8 without -128, so that the range is the same on both sides of 0
MOST_VECTORS = 64  # that a GPU's kernel takes at once
KERNEL_TYPES = (torch.float32, torch.bfloat16, torch.float16)
SMALLEST = torch.finfo(torch.float32).tiny  # what zeros are divided by


class Int8Linear(Converted):
    """`nn.Linear` with int8 weights, for inference only: it has no parameters and no gradients.

    On a CPU the weights are held as the kernel wants them, and not beside that: `weight` is then
    empty until the module moves or is saved.
    """

    weight: Tensor  # (out, in) int8; (0, in) while packed
    scale: Tensor  # (out,) float32, whatever the module's type is
    bias: Tensor | None  # (out,)

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Round a float weight (out, in); the bias (out,) stays as it is."""
        super().__init__()
        self.training = False
        self.outputs, self.inputs = weight.shape
        whole, scale = rounded(weight.detach().float())
        self.register_buffer("weight", whole)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        self.packed: torch.ScriptObject | None = None
        self.most = 0  # what the kernel rounds a vector's largest entry to
        self.pack()

    def forward(self, x: Tensor) -> Tensor:
        """x (..., in) -> (..., out), in x's type."""
        if self.training or (x.requires_grad and torch.is_grad_enabled()):
            raise RegardError(
                "int8 weights cannot be trained and pass no gradients; "
                "train the float model and quantise it, or call eval()"
            )
        if self.packed is None:
            if x.is_cuda and (product := _product_on_gpus(x)):
                vectors = x.reshape(-1, self.inputs)
                y = product(vectors, self.weight, self.scale, self.bias)  # (vectors, out)
                return y.view(*x.shape[:-1], self.outputs)
            weight = x.new_empty(self.weight.shape)  # the product's type, with no float32 between
            return F.linear(x, torch.mul(self.weight, self.scale[:, None], out=weight), self.bias)
        if x.dim() < 2:
            return self.forward(x[None])[0]
        vectors = x.float()
        largest = _largest(vectors)  # (..., 1)
        y = _product(vectors / largest, self.most, self.packed)  # (..., out)
        bias = self.bias
        # In place and at once: three tiny steps less, of 59 µs that one row of 512 took.
        y = y.mul_(largest) if bias is None else torch.addcmul(bias.float(), y, largest, out=y)
        return y.to(x.dtype)

    def pack(self) -> None:
        """Lay the weights out for the CPU's kernel, where there is one; the plain ones go."""
        if self.packed is None and self.weight.device.type == "cpu" and limit():
            self.most, self.packed = limit(), _packed(self.weight, self.scale)
            self.weight = self.weight.new_empty(0, self.inputs)

    def unpack(self) -> None:
        """The plain weights again; products are then made without the kernel."""
        if self.packed is not None:
            self.weight = torch.ops.quantized.linear_unpack(self.packed)[0].int_repr()
            self.packed = None

    def extra_repr(self) -> str:
        return f"{self.inputs}, {self.outputs}, bias={self.bias is not None}"

    # A kernel's layout can be neither moved nor saved: the plain weights are, and pack again.

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.unpack()
        scale = self.scale
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.scale = scale.to(self.scale.device)  # not rounded to the module's new type
        self.pack()
        return self

    def _save_to_state_dict(self, *args: Any) -> None:
        self.unpack()
        super()._save_to_state_dict(*args)
        self.pack()

    def _load_from_state_dict(self, *args: Any) -> None:
        self.unpack()
        super()._load_from_state_dict(*args)
        self.pack()

    def __getstate__(self) -> dict[str, Any]:
        self.unpack()
        held = {**self.__dict__, "_buffers": dict(self._buffers)}
        self.pack()
        return held

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.pack()


def quantise(module: M, *, keep: bool = True) -> M:
    """A copy for inference with int8 in place of every `nn.Linear`; see `converted`."""
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear | nn.Embedding) and not bool(part.weight.isfinite().all()):
            raise RegardError(f"the weights of {name or 'the layer'} are not finite; no int8 fits")
    return converted(module, Int8Linear, keep=keep)


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight (out, in) as whole numbers (out, in) int8 and each row's scale (out,)."""
    largest = _largest(weight)
    # In place: a process keeps what was freed in pieces of this size. It held 104 MB for the int8
    # copy of a 197 MB model, of which 73 were in use; with two more temporaries 266.
    whole = (weight / largest).mul_(MOST).round_().to(torch.int8)
    return whole, largest.squeeze(-1) / MOST


def _largest(x: Tensor) -> Tensor:
    """Each vector's largest magnitude; (..., width) -> (..., 1). Zeros may be divided by it."""
    # abs().amax() and not a norm or aminmax: 12 µs against 181 and 146 for 128 rows of 512.
    return x.abs().amax(-1, keepdim=True).clamp_min_(SMALLEST)


def _product_on_gpus(x: Tensor) -> Callable[..., Tensor] | None:
    """The kernel for x (..., in) on a GPU, where there is one and it pays."""
    few = 0 < x.numel() <= MOST_VECTORS * x.shape[-1] and not PLAIN
    return fused() if few and x.dtype in KERNEL_TYPES and not x.is_meta else None


@cache
def fused() -> Callable[..., Tensor] | None:
    """The kernel, if Triton is there and what it builds computes what it should."""
    try:
        from regard.models.kernels import int8_cuda

        return int8_cuda.product if int8_cuda.works() else None
    except Exception:  # no Triton, or no compiler for it: the weights are written out as floats
        return None


# The CPU's kernel is FBGEMM's, by way of torch's quantised tensors. It takes a float matrix, a
# scale and an offset to make it whole and unsigned with, and packed weights; it gives float32.


def _product(vectors: Tensor, most: int, packed: torch.ScriptObject) -> Tensor:
    """round(vectors · most) / most, of (..., in) within -1..1, times the weights; (..., out)."""
    kernel = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
    return kernel(vectors, 1 / most, most + 1, packed)


def _packed(weight: Tensor, scale: Tensor) -> torch.ScriptObject:
    """weight (out, in) int8 and its scales (out,) as the kernel reads them."""
    zeros = torch.zeros_like(scale, dtype=torch.long)
    chosen = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    try:
        with warnings.catch_warnings():
            # torch 2.13 deprecates making such a tensor, without another way to pack; when it is
            # gone, `limit` finds no kernel.
            warnings.filterwarnings("ignore", ".*quantize.*deprecated", UserWarning)
            quantised = torch._make_per_channel_quantized_tensor(weight, scale.double(), zeros, 0)
            return torch.ops.quantized.linear_prepack(quantised, None)
    finally:
        torch.backends.quantized.engine = chosen


@cache
def limit() -> int:
    """The largest whole number the CPU's kernel takes in a vector; 0 where there is no kernel.

    Without avx512_vnni it adds pairs of products in 16 bits, which 127 would overflow and 63 does
    not; the kernel itself is asked, with the largest sums there are.
    """
    if PLAIN:
        return 0
    signs = torch.tensor([[1.0], [-1.0]], dtype=torch.float32, device="cpu")
    vectors = signs.repeat(1, 64)  # (2, 64)
    weight = (MOST * vectors).to(torch.int8)  # (2, 64)
    try:
        packed = _packed(weight, torch.ones_like(vectors[:, 0]))
        for most in (MOST, MOST // 2):
            if torch.allclose(_product(vectors, most, packed), vectors @ weight.float().T):
                return most
    except (AttributeError, RuntimeError):  # another processor, or a torch without it
        pass
    return 0
