"""A small model of every architecture, and what torch itself says of a real run of it."""

from collections import Counter
from dataclasses import replace

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from regard.models.construction import build
from regard.models.registry import named

VOCABULARY = 64
SMALL = {
    "vocabulary": VOCABULARY,
    "width": 32,
    "hidden": 32,
    "heads": 4,
    "layers": 2,
    "encoder_layers": 2,
    "context": 64,
    "kv_heads": 4,
    "head_width": 8,
}
NAMES = (
    "gpt2",
    "llama-3-8b",
    "bert-base",
    "t5-small",
    "t5-1.1-small",
    "marian",
    "transformer-base",
    "regard-4",
    "regard-4-encoder",
    "regard-4-encoder-decoder",
    "elman",
    "gru",
    "lstm",
    "awd-lstm",
    "rnn",
    "bahdanau",
    "luong",
    "conv",
    "conv-pairs",
    "linear-recurrence",
    "bag-linear",
    "bag-perceptron",
)


def small(name):
    """The settings of a named model, with all sizes small and everything else as it is."""
    config = named(name)
    own = vars(config)
    changes = {key: value for key, value in SMALL.items() if own.get(key)}
    if name == "conv":
        del changes["heads"]  # it has none to choose
    if own.get("kv_heads") not in (None, 0):
        changes["kv_heads"] = 2 if own["kv_heads"] < own["heads"] else 4
    if own.get("source_vocabulary"):
        changes["source_vocabulary"] = VOCABULARY
    return replace(config, **changes)


def answer(module, tokens, source):
    """The logits of a batch, whichever kind the model is."""
    if module.config.reads:
        return module(tokens, module.encode(source))
    return module(tokens)


def learn(module, tokens, source):
    """Forward and backward, as training does."""
    logits = answer(module, tokens, source)
    F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten(), reduction="sum").backward()


def real(config, rows, tokens, source):
    """A model with numbers in evaluation mode, and what to feed it."""
    ids = torch.randint(VOCABULARY, (rows, tokens))
    return build(config).eval(), ids, torch.randint(VOCABULARY, (rows, source))


def products_by_torch(config, rows, tokens, source):
    """FLOPs of forward and backward by `FlopCounterMode`, attention written out."""
    given = real(config, rows, tokens, source)
    # oneDNN's recurrence is unknown to it, as are all fused kernels of a CPU.
    with (
        FlopCounterMode(display=False) as counter,
        sdpa_kernel(SDPBackend.MATH),
        torch.backends.mkldnn.flags(enabled=False),
    ):
        learn(*given)
    return counter.get_total_flops()


def kept_by_torch(config, rows, tokens, source):
    """Bytes that autograd keeps, weights not counted: of different storages, each whole."""
    module, ids, read = real(config, rows, tokens, source)
    weights = {weight.untyped_storage().data_ptr() for weight in module.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        learn(module, ids, read)
    return sum(storage.nbytes() for storage in kept.values())


class Names(TorchDispatchMode):
    """The operations of a real run, and how often each."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


def operations_by_torch(config, rows, tokens, source):
    """How often each operation runs in a real pass there and back."""
    given = real(config, rows, tokens, source)
    with Names() as names:
        learn(*given)
    return names.counts
