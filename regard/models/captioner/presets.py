"""Named captioners."""

from dataclasses import replace

from regard.models.captioner.config import CaptionConfig
from regard.models.config import Preset, Presets

CAPTIONER = CaptionConfig()
PATCHES = replace(CAPTIONER, encoder="patches", encoder_layers=4)
PRESETS = Presets(
    {
        "captioner": Preset(
            CAPTIONER,
            "says what is in a picture (--images): a residual network, and a Transformer",
        ),
        "captioner-lstm": Preset(
            replace(CAPTIONER, decoder="lstm"),
            "the same with an LSTM that looks at the picture for each word",
        ),
        "captioner-vit": Preset(
            PATCHES, "the same as captioner with a Transformer over patches of the picture"
        ),
        "captioner-vit-lstm": Preset(
            replace(PATCHES, decoder="lstm"), "patches, and an LSTM that looks at them"
        ),
    }
)
