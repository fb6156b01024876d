"""Named recurrent models."""

from dataclasses import replace

from regard.models.config import Preset, Presets
from regard.models.recurrent.config import RecurrentConfig

LSTM = RecurrentConfig(dropout=0.2)
GRU_PAIRS = RecurrentConfig(
    kind="encoder-decoder", cell="gru", layers=1, width=256, hidden=512, dropout=0.3
)
BAHDANAU = replace(GRU_PAIRS, attention="additive")
PRESETS = Presets(
    {
        "elman": Preset(
            replace(LSTM, cell="elman"),
            "a recurrent language model without gates, whose gradients vanish or explode",
        ),
        "gru": Preset(replace(LSTM, cell="gru"), "the same with two gates"),
        "lstm": Preset(LSTM, "the same with three gates around a sum that gradients pass through"),
        "awd-lstm": Preset(
            RecurrentConfig(
                layers=3,
                width=400,
                hidden=1150,
                dropout=0.2,
                input_dropout=0.65,
                output_dropout=0.4,
                variational=True,
                weight_dropout=0.5,
                embedding_dropout=0.1,
            ),
            "the LSTM of Merity 2017: three layers, and dropout of everything",
        ),
        "rnn": Preset(
            GRU_PAIRS,
            "translates (--pairs) through one vector: a GRU that reads, a GRU that writes",
        ),
        "rnn+attention": Preset(
            BAHDANAU, "the same with attention: each step looks at all of the source"
        ),
        "bahdanau": Preset(BAHDANAU, "the same"),
        "luong": Preset(
            replace(GRU_PAIRS, cell="lstm", layers=2, attention="general", input_feeding=True),
            "LSTMs that look after each step, and read what they saw in the next",
        ),
    }
)
