"""Named gated linear recurrences."""

from regard.models.config import Preset, Presets
from regard.models.linear_recurrence.config import LinearRecurrenceConfig

GATED = LinearRecurrenceConfig(dropout=0.1)
PRESETS = Presets(
    {
        "linear-recurrence": Preset(
            GATED,
            "a recurrent language model that learns from all tokens of a row at once: its gates "
            "do not depend on what it remembers",
        ),
        "mingru": Preset(GATED, "the same, by the name of its cell (Feng 2024)"),
    }
)
