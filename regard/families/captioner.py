"""The family of captioners (M8): an encoder of pictures, a decoder of text."""

from regard.families.base import Family
from regard.models.config import ModelConfig

SLOWER = 3  # a Transformer's rate by this: the encoder is deep


class Captioners(Family):
    def learning_rate(self, config: ModelConfig, optimizer: str) -> float:
        usual = super().learning_rate(config, optimizer)
        return usual if optimizer == "sgd" else usual / SLOWER


FAMILY = Captioners()
