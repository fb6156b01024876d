"""Named ways to make word vectors."""

from dataclasses import replace

from regard.models.config import Preset, Presets
from regard.models.word_vectors.config import Word2VecConfig

SKIP_GRAM = Word2VecConfig()
PRESETS = Presets(
    {
        "word2vec": Preset(
            SKIP_GRAM, "word vectors by skip-gram: each word predicts those near it"
        ),
        "skip-gram": Preset(SKIP_GRAM, "the same"),
        "cbow": Preset(
            replace(SKIP_GRAM, method="cbow"),
            "word vectors by continuous bag of words: those near a place predict the word there",
        ),
    }
)
