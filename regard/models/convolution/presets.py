"""Named convolutional models."""

from regard.models.config import Preset, Presets
from regard.models.convolution.config import ConvolutionConfig

PRESETS = Presets(
    {
        "conv": Preset(
            ConvolutionConfig(dilation_growth=2, dilation_cycle=4, dropout=0.1),
            "a causal convolutional language model that sees the last 61 tokens",
        ),
        "conv-pairs": Preset(
            ConvolutionConfig(kind="encoder-decoder", layers=4, dropout=0.2),
            "translates (--pairs): convolutions that read, convolutions that write and look",
        ),
    }
)
