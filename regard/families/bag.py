"""The family of classifiers of bags of words (M3, M25)."""

from regard.families.base import Family
from regard.models.bag.config import BagConfig
from regard.models.config import ModelConfig
from regard.training.optimization.optimizers import GENTLE

LINEAR, PERCEPTRON = 0.1, 0.01  # learning rates


class Bags(Family):
    predictable = False  # a mean of rows is no product

    def learning_rate(self, config: ModelConfig, optimizer: str) -> float:
        assert isinstance(config, BagConfig)
        if optimizer == "sgd":
            return GENTLE
        return PERCEPTRON if config.layers else LINEAR


FAMILY = Bags()
