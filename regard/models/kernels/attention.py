"""Which of torch's attention kernels may be taken."""

from contextlib import AbstractContextManager, nullcontext

from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.models.kernels.switches import PLAIN, Switch

# cuDNN's attention is left out: it plans anew for every shape, a quarter of a second each. Where
# all shapes are the same it may stay (docs/measurements.md).
TAKE_ANY_SHAPE = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


_any_shape = Switch(lambda: sdpa_kernel(TAKE_ANY_SHAPE))


def any_shape() -> AbstractContextManager[None]:
    """Attention meanwhile with kernels that take every shape as it comes: pairs, decoding."""
    return nullcontext() if PLAIN else _any_shape.on()
