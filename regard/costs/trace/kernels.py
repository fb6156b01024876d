"""Which kernel torch runs attention, recurrence and dropout on, by device.

Below Python torch asks the device what it has. Meta tensors have nothing, so the choice is made
here, as torch 2.11 to 2.13 make it; a test holds the operations of a CPU to those of a real run.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Kernel = Callable[..., Any]
aten = torch.ops.aten
HALF = (torch.bfloat16, torch.float16)


def _attention(
    fused: Callable[..., Tensor | None],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`F.scaled_dot_product_attention` by a fused kernel, or written out where it has none."""
    plain = query.dim() == 4 and query.shape[-1] == value.shape[-1]
    if plain:
        found = fused(query, key, value, attn_mask, dropout_p, is_causal, scale)
        if found is not None:
            return found
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = _as_numbers(attn_mask, query)
    mixed: Tensor = aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]
    return mixed


def _as_numbers(mask: Tensor, query: Tensor) -> Tensor:
    """A mask of yes and no as what is added to the scores: 0 and −∞."""
    see, hide = (torch.scalar_tensor(x, dtype=query.dtype, device="meta") for x in (0.0, -math.inf))
    return torch.where(mask, see, hide)


def _fused_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> Tensor | None:
    if dropout or (mask is not None and mask.requires_grad):
        return None
    if mask is not None and mask.dtype == torch.bool:
        mask = _as_numbers(mask, query)
    kernel = aten._scaled_dot_product_flash_attention_for_cpu
    return kernel(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)[0]


def _fused_cuda(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> Tensor | None:
    if mask is None and query.dtype in HALF and query.shape[-1] <= 256:
        more = -query.shape[-1] % 8  # the kernel wants heads of a multiple of 8
        parts = [F.pad(t, (0, more)) if more else t for t in (query, key, value)]
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        kernel = aten._scaled_dot_product_flash_attention
        return kernel(*parts, dropout, causal, False, scale=scale)[0][..., : query.shape[-1]]
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = (t.repeat_interleave(repeats, dim=1) for t in (key, value))
    if mask is not None:
        mask = _as_numbers(mask, query) if mask.dtype == torch.bool else mask
        mask = mask.expand(*query.shape[:3], key.shape[2])
    kept = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    kernel = aten._scaled_dot_product_efficient_attention
    return kernel(query, key, value, mask, kept, dropout, causal, scale=scale)[0]


def _written_out(*_: Any) -> None:
    return None


def _dropout_cuda(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if not training or not p or inplace:
        return F.dropout(x, p, training, inplace)
    return torch.native_dropout(x, p, True)[0]


@torch.library.custom_op("regard::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor) -> list[Tensor]:
    """A fused RMS norm: x normed, and for the way back a number for each vector; for meta tensors
    only, for which torch writes it out, with copies in float32 that a GPU does not keep."""
    raise NotImplementedError


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor) -> list[Tensor]:
    return [torch.empty_like(x), x.new_empty(x.shape[:-1], dtype=torch.float32)]


@torch.library.custom_op("regard::rms_norm_backward", mutates_args=())
def rms_norm_backward(grad: Tensor, x: Tensor, kept: Tensor, weight: Tensor) -> list[Tensor]:
    """Its way back: the gradients of x and of the weight."""
    raise NotImplementedError


@rms_norm_backward.register_fake
def _(grad: Tensor, x: Tensor, kept: Tensor, weight: Tensor) -> list[Tensor]:
    return [torch.empty_like(x), torch.empty_like(weight)]


rms_norm.register_autograd(
    lambda ctx, grads: tuple(rms_norm_backward(grads[0], *ctx.saved_tensors)),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(
        inputs[0], output[1], inputs[1]
    ),
)


def _rms_norm_cuda(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    if weight is None:
        return F.rms_norm(x, list(shape), weight, eps)
    return rms_norm(x, weight)[0]


@torch.library.custom_op("regard::recurrence", mutates_args=())
def recurrence(x: Tensor, begun: list[Tensor], weights: list[Tensor], keep: int) -> list[Tensor]:
    """A fused recurrence, all positions of a layer in one call; for meta tensors only.

    x (rows, new, width) and what is remembered, each (1, rows, hidden), give h at every position,
    what is remembered then, and for the way back `keep` numbers for each of h.
    """
    raise NotImplementedError


@recurrence.register_fake
def _(x: Tensor, begun: list[Tensor], weights: list[Tensor], keep: int) -> list[Tensor]:
    rows, new = x.shape[:2]
    hidden = weights[1].shape[1]
    ends = [torch.empty_like(part) for part in begun]
    return [x.new_empty(rows, new, hidden), *ends, x.new_empty(rows * new * hidden * keep)]


@torch.library.custom_op("regard::recurrence_backward", mutates_args=())
def recurrence_backward(
    grad: Tensor,
    x: Tensor,
    begun: list[Tensor],
    weights: list[Tensor],
    kept: Tensor,
    first: bool,
) -> list[Tensor]:
    """Its way back; `first` says whether anybody asks for the gradient of what it began with."""
    raise NotImplementedError


@recurrence_backward.register_fake
def _(
    grad: Tensor,
    x: Tensor,
    begun: list[Tensor],
    weights: list[Tensor],
    kept: Tensor,
    first: bool,
) -> list[Tensor]:
    return [torch.empty_like(t) for t in (x, *begun, *weights)]


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    x, begun, weights, _ = inputs
    ctx.parts, ctx.first = len(begun), begun[0].requires_grad
    ctx.save_for_backward(x, *begun, *weights, output[-1], output[0])


def _back(ctx: Any, grads: Any) -> Any:
    x, *rest, kept, y = ctx.saved_tensors
    begun, weights = rest[: ctx.parts], rest[ctx.parts :]
    grad = torch.empty_like(y) if grads[0] is None else grads[0]
    found = recurrence_backward(grad, x, begun, weights, kept, ctx.first)
    return found[0], found[1 : 1 + ctx.parts], found[1 + ctx.parts :], None


recurrence.register_autograd(_back, setup_context=_remember)


ONEDNN_KEEPS = 15  # numbers for each of h: gates, states and room for their gradients (measured)


def _recurrent(
    composed: Kernel, keeps: int | None, x: Tensor, begun: Any, weights: Any, *how: Any
) -> Any:
    """One layer by a fused kernel; rows of different lengths come one step after another here.

    `keeps`: what oneDNN's workspace has for each number of h; cuDNN keeps all gates and a state.
    """
    if not isinstance(how[0], bool) or not how[-1]:  # `begun` are the sizes of steps then
        return composed(x, begun, weights, *how)
    held = list(begun) if isinstance(begun, list) else [begun]
    gates = weights[1].shape[0] // weights[1].shape[1]
    kept = (gates + 1 if keeps is None else keeps) if how[3] else 0
    return tuple(recurrence(x, held, list(weights), kept)[:-1])


def _gru_step(given: Tensor, h: Tensor, matrix: Tensor, bias: Tensor) -> Tensor:
    wr, wz, wn = given.unsafe_chunk(3, 1)
    ur, uz, un = F.linear(h, matrix, bias).unsafe_chunk(3, 1)
    r, z = ur.add_(wr).sigmoid_(), uz.add_(wz).sigmoid_()
    n = wn.add(un.mul_(r)).tanh_()
    return (h - n).mul_(z).add_(n)


def _elman_step(given: Tensor, h: Tensor, matrix: Tensor, bias: Tensor) -> Tensor:
    return torch.tanh(F.linear(h, matrix, bias).add_(given))


def _stepwise(
    composed: Kernel, step: Callable[..., Tensor], x: Tensor, begun: Any, weights: Any, *how: Any
) -> Any:
    """One layer on a CPU: Wx of all positions at once, then step by step, as torch has it there."""
    if not isinstance(how[0], bool) or not how[-1]:  # `begun` are the sizes of steps then
        return composed(x, begun, weights, *how)
    inputs, matrix, input_bias, bias = weights
    (h,), found = begun.unbind(0), []
    for given in F.linear(x.transpose(0, 1), inputs, input_bias).unbind(0):
        h = step(given, h, matrix, bias)
        found.append(h)
    return torch.stack(found).transpose(0, 1), torch.stack([h])


def _table(attention: Kernel, more: Mapping[Any, Kernel]) -> dict[Any, Kernel]:
    return {F.scaled_dot_product_attention: attention, **more}


KERNELS: dict[tuple[str, bool], Mapping[Any, Kernel]] = {
    ("cpu", False): _table(
        partial(_attention, _fused_cpu),
        {
            torch.lstm: partial(_recurrent, torch.lstm, ONEDNN_KEEPS),
            torch.gru: partial(_stepwise, torch.gru, _gru_step),
            torch.rnn_tanh: partial(_stepwise, torch.rnn_tanh, _elman_step),
        },
    ),
    ("cuda", False): _table(
        partial(_attention, _fused_cuda),
        {
            F.dropout: _dropout_cuda,
            F.rms_norm: _rms_norm_cuda,
            **{f: partial(_recurrent, f, None) for f in (torch.lstm, torch.gru, torch.rnn_tanh)},
        },
    ),
    ("cpu", True): _table(partial(_attention, _written_out), {}),
    ("cuda", True): _table(partial(_attention, _written_out), {}),
}
