"""The family of recurrent models (M5–M7): a state goes from step to step."""

from collections.abc import Callable, Mapping
from typing import Any

from regard.data.feeds.stream import ContinuedTextFeed, TextFeed
from regard.data.token_files import Tokens
from regard.families.base import Family
from regard.families.plan import Plan
from regard.families.recurrent.through_time import recorder
from regard.families.settings import Settings
from regard.families.tasks.base import Work
from regard.families.tasks.text import Causal
from regard.models.config import ModelConfig, Task
from regard.models.network import BaseModel
from regard.models.recurrent.model import RecurrentDecoder
from regard.training.optimization.optimizers import STEEP
from regard.training.validation import carried_rules

FASTER = 3  # times a Transformer's rate: bytes of Python, width 128, loss 2.40 instead of 2.57
REACH = 64  # tokens that gradients go back
TOKENS = (2048, 8192)  # of a step, on a CPU and on a GPU


class Carried(Causal):
    """Text whose rows continue one another from step to step."""

    def feed(
        self, train: Tokens, valid: Tokens, config: ModelConfig, settings: Settings, tokens: int
    ) -> TextFeed:
        return ContinuedTextFeed(*self.shape(train, valid, settings, tokens))

    def rules(self, config: ModelConfig, context: int) -> str:
        return carried_rules()


class Recurrent(Family):
    works: Mapping[Task, Work] = {**Family.works, "causal": Carried()}

    def sizes(
        self, settings: Settings, config: ModelConfig, gpu: bool, named: bool
    ) -> tuple[int, int]:
        return TOKENS[gpu], REACH

    def learning_rate(self, config: ModelConfig, optimizer: str) -> float:
        if config.reads_text:
            return super().learning_rate(config, optimizer)
        return STEEP if optimizer == "sgd" else FASTER * super().learning_rate(config, optimizer)

    def recorder(self, plan: Plan, module: BaseModel) -> Callable[[], dict[str, Any]] | None:
        if not isinstance(module, RecurrentDecoder):
            return None
        assert isinstance(plan.feed, TextFeed)
        return recorder(module, plan.feed)


FAMILY = Recurrent()
