"""Named n-gram models."""

from dataclasses import replace

from regard.models.config import Preset, Presets
from regard.models.counting.config import NGramConfig

FIVE = NGramConfig()
PRESETS = Presets(
    {
        "unigram": Preset(
            replace(FIVE, order=1),
            "a bag of words: how often each token stands, order ignored",
        ),
        "bigram": Preset(replace(FIVE, order=2), "each token by the one before it"),
        "trigram": Preset(replace(FIVE, order=3), "each token by the two before it"),
        "ngram": Preset(
            FIVE,
            "each token by the last four (or --order), interpolated modified Kneser–Ney",
        ),
    }
)
