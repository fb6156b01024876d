"""Named models: settings of the one Transformer, with the sizes that were published.

`regard-N` is our own from-scratch default: one dial, the depth N, sets every width.
"""

import re
from dataclasses import replace

from regard.errors import RegardError, nearest
from regard.models.config import Preset, Presets
from regard.models.transformer.config import Kind, RotaryScaling, TransformerConfig

GPT2 = TransformerConfig(dropout=0.1, attention_dropout=0.1)

BERT = TransformerConfig(
    kind="encoder",
    vocabulary=30522,
    context=512,
    activation="gelu",
    norm_place="post",
    norm_epsilon=1e-12,
    embedding_norm=True,
    segments=2,
    head="masked",
    head_bias=True,
    pooler=True,
    dropout=0.1,
    attention_dropout=0.1,
)

LLAMA = TransformerConfig(
    vocabulary=32000,
    context=4096,
    layers=32,
    width=4096,
    heads=32,
    hidden=11008,
    activation="silu",
    gated=True,
    norm="rms",
    positions="rotary",
    attention_bias=False,
    feedforward_bias=False,
    tied=False,
)

T5 = TransformerConfig(
    kind="encoder-decoder",
    vocabulary=32128,
    context=512,
    layers=6,
    width=512,
    heads=8,
    head_width=64,
    hidden=2048,
    activation="relu",
    norm="rms",
    norm_epsilon=1e-6,
    positions="relative",
    attention_bias=False,
    feedforward_bias=False,
    scale_scores=False,
    scale_head=True,
    dropout=0.1,
    attention_dropout=0.1,
    activation_dropout=0.1,
    initialisation="fan-in",
)

VASWANI = TransformerConfig(
    kind="encoder-decoder",
    vocabulary=37000,
    context=512,
    layers=6,
    width=512,
    heads=8,
    hidden=2048,
    activation="relu",
    norm_place="post",
    positions="sinusoidal",
    attention_bias=False,
    scale_embeddings=True,
    dropout=0.1,
    initialisation="xavier",
)

MARIAN = replace(
    VASWANI,
    vocabulary=58101,
    activation="silu",
    positions="sinusoidal-halves",
    attention_bias=True,
    head_bias=True,
)

T5_11 = replace(T5, gated=True, activation="gelu-tanh", tied=False, scale_head=False)


def _tiny(config: TransformerConfig) -> TransformerConfig:
    """Small enough for a test to run in milliseconds, with every part that `config` has."""
    return replace(config, vocabulary=256, context=64, layers=2, width=32, heads=4, hidden=64)


_llama3 = replace(LLAMA, vocabulary=128256, context=8192, kv_heads=8, rotary_base=500000.0)

SIZES: dict[str, TransformerConfig] = {
    "gpt2": GPT2,
    "gpt2-medium": replace(GPT2, layers=24, width=1024, heads=16, hidden=4096),
    "gpt2-large": replace(GPT2, layers=36, width=1280, heads=20, hidden=5120),
    "gpt2-xl": replace(GPT2, layers=48, width=1600, heads=25, hidden=6400),
    "bert-base": BERT,
    "bert-large": replace(BERT, layers=24, width=1024, heads=16, hidden=4096),
    "llama-2-7b": LLAMA,
    "llama-3-8b": replace(_llama3, hidden=14336),
    "llama-3.2-1b": replace(
        _llama3,
        context=131072,
        layers=16,
        width=2048,
        hidden=8192,
        tied=True,
        rotary_scaling=RotaryScaling(factor=32.0),
    ),
    "t5-small": T5,
    "t5-base": replace(T5, layers=12, width=768, heads=12, hidden=3072),
    "t5-1.1-small": replace(T5_11, layers=8, heads=6, hidden=1024),
    "marian": MARIAN,
    "transformer-base": VASWANI,
    "transformer-big": replace(VASWANI, width=1024, heads=16, hidden=4096, dropout=0.3),
    "transformer-tiny": replace(
        VASWANI, vocabulary=10000, layers=4, width=128, heads=4, hidden=256, dropout=0.3
    ),
    "gpt2-tiny": _tiny(GPT2),
    "bert-tiny": _tiny(BERT),
    "llama-tiny": _tiny(replace(LLAMA, kv_heads=2)),
    "t5-tiny": _tiny(replace(T5, head_width=16)),
    "marian-tiny": _tiny(MARIAN),
}

DIAL = re.compile(r"regard-(\d+)(-encoder|-encoder-decoder)?")
DIALLED = ("regard-4", "regard-8", "regard-12", "regard-20", "regard-32")


def dialled(depth: int, kind: Kind = "decoder") -> TransformerConfig:
    """Our default Transformer of a given depth: Llama's parts, 64 of width a layer.

    Heads are 64 wide up to width 512 and for odd depths, else 128 (on an H200, 124M parameters
    trained 0 to 4 % faster with six heads of 128 than with twelve of 64; see the measurements); a
    gated layer of 8/3 the width costs what a plain one of 4 times the width does.
    """
    width = 64 * depth
    heads = depth if width <= 512 or depth % 2 else depth // 2
    return replace(
        LLAMA,
        kind=kind,
        vocabulary=32768,
        context=1024,
        layers=depth,
        width=width,
        heads=heads,
        hidden=(width * 8 // 3 + 63) // 64 * 64,
        tied=True,
    )


def by_depth(name: str) -> TransformerConfig | None:
    """`regard-N` for any depth N; `-encoder` and `-encoder-decoder` for the other assemblies."""
    dial = DIAL.fullmatch(name)
    if not dial:
        return None
    if not 1 <= int(dial[1]) <= 128:
        raise RegardError(f"{name}: the depth of a regard model goes from 1 to 128")
    kinds: dict[str | None, Kind] = {
        None: "decoder",
        "-encoder": "encoder",
        "-encoder-decoder": "encoder-decoder",
    }
    return dialled(int(dial[1]), kinds[dial[2]])


def preset(name: str) -> TransformerConfig:
    """The settings a name stands for."""
    found = SIZES.get(name) or by_depth(name)
    if found is None:
        raise RegardError(f"no model is called {name!r}; {nearest(name, [*SIZES, *DIALLED])}")
    return found


PRESETS = Presets(
    {name: Preset(config, config.about) for name, config in SIZES.items()}, DIALLED, by_depth
)
