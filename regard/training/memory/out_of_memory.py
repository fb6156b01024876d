"""Whether an error says that memory has run out. Needs no torch: every command asks it."""

# What the allocators of torch and of the libraries below it say. Where another process has taken a
# whole GPU, not even CUDA itself can begin.
FULL = (
    "DefaultCPUAllocator",
    "CUDA error: out of memory",
    "_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INIT",
)


def is_full(error: Exception) -> bool:
    """Whether an error says that memory has run out, of this process or of a device."""
    if isinstance(error, MemoryError):
        return True
    named = type(error).__name__ == "OutOfMemoryError"  # torch's
    return isinstance(error, RuntimeError) and (named or any(sign in str(error) for sign in FULL))
