"""The family of Transformers (M11–M19): decoders, encoders, encoder–decoders."""

from regard.families.base import Family
from regard.families.settings import Settings
from regard.models.config import ModelConfig

SHORT = 256  # tokens of a row on a CPU, where nobody names a model


class Transformers(Family):
    def sizes(
        self, settings: Settings, config: ModelConfig, gpu: bool, named: bool
    ) -> tuple[int, int]:
        tokens, _ = super().sizes(settings, config, gpu, named)
        short = not named and not gpu and not settings.data.pairs
        return tokens, min(config.context, SHORT) if short else config.context

    def compiles(self, config: ModelConfig) -> bool:
        return True


FAMILY = Transformers()
