"""The family of convolutional models (M9)."""

from collections.abc import Mapping

from regard.families.base import Family
from regard.families.plan import Plan
from regard.models.convolution.config import ConvolutionConfig


class Convolution(Family):
    def facts(self, plan: Plan) -> Mapping[str, str]:
        """How far it sees: by its settings alone, whatever it is trained on."""
        config = plan.config
        assert isinstance(config, ConvolutionConfig)
        found = f"the last {config.reach:,} tokens"
        if config.reads_text:
            found += f" of a target, {config.source_reach:,} around each one of a source"
        return {"sees": found}


FAMILY = Convolution()
