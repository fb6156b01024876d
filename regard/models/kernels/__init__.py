"""Fast paths: kernels that torch has but does not choose, and choices it keeps for a process.

Whatever leans on torch's inside stands here, beside the trial that it computes on this machine what
it should and the plain way that is taken else. `REGARD_PLAIN=1` turns all of them off.
"""


def report() -> list[str]:
    """Each fast path in a line: whether this process takes it, and if not why."""
    import torch

    from regard.models.kernels import dropout, int8, linear, switches, threads

    if switches.PLAIN:
        return ["all fast paths: off, REGARD_PLAIN is set"]
    missing = "this torch has no such product"
    gpu = torch.cuda.is_available()
    found = {
        "products without gradients by oneDNN": "" if linear.ONEDNN else missing,
        "products with gradients by oneDNN": ""
        if linear.onednn_is_exact()
        else "only AMD's processors with AVX-512 gain, and only where float32 is kept",
        "weights packed for writing": "" if linear.ONEDNN else missing,
        "dropout from 16 bits": "MKL draws here" if dropout.drawn_by_mkl() else "",
        "int8 products on the CPU": "" if int8.limit() else "the kernel is not there or adds wrong",
        "int8 products on the GPU": ""
        if gpu and int8.fused()
        else "the kernel cannot be built or computes wrong"
        if gpu
        else "there is no GPU",
        "recurrent cells in one call": "",
        "attention kernels for any shape": "",
        "batches side by side": "" if threads.most_at_once() > 1 else "torch has one thread",
    }
    return [f"{path}: {f'off, {why}' if why else 'on'}" for path, why in found.items()]
