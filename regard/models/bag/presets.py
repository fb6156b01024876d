"""Named classifiers of bags of words."""

from dataclasses import replace

from regard.models.bag.config import BagConfig
from regard.models.config import Preset, Presets

BAG = BagConfig(vocabulary=7, source_vocabulary=50257)  # two labels, as many words as GPT-2 has
PRESETS = Presets(
    {
        "bag-linear": Preset(
            BAG, "labels texts (--pairs) by their words, order ignored: logistic regression"
        ),
        "bag-perceptron": Preset(replace(BAG, layers=1), "the same with a hidden layer"),
    }
)
