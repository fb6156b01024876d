"""Captions of pictures (M8): an encoder makes a grid of a picture, a decoder describes it.

The encoder is a residual network or a Transformer over patches, the decoder a Transformer's or an
LSTM with attention; any goes with any other. Their weights are named `eye` and `hand` in files, and
so are the attributes here: runs of before load.
"""

from dataclasses import replace

from torch import Tensor, nn

from regard.errors import RegardError
from regard.models.captioner.config import CaptionConfig
from regard.models.captioner.lstm_decoder import LSTMDecoder
from regard.models.captioner.vision import Grid, Patches
from regard.models.initialisation import initialise
from regard.models.masks import Mask
from regard.models.network import Network
from regard.models.protocol import Memory, State
from regard.models.recurrent.config import RecurrentConfig
from regard.models.transformer.blocks import Stack
from regard.models.transformer.config import TransformerConfig
from regard.models.transformer.model import SourceDecoder
from regard.models.validation import Lengths


class TransformerDecoder(SourceDecoder):
    """A Transformer's decoder alone."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.decoder = Stack(self.config, self.config.layers, causal=True, cross=True)
        initialise(self, self.config)


class Captioner(Network):
    """Writes about a picture, in the protocol: pictures are its sources."""

    def __init__(self, config: CaptionConfig) -> None:
        super().__init__()
        self.config = config.resolved()
        size, patch, layers = config.picture, config.patch, config.encoder_layers
        self.eye: Grid | Patches
        if config.encoder == "cnn":
            self.eye = Grid(size, patch, config.width, layers)
        else:
            reads = replace(config.reads_with, positions="none")  # a place is its own vector
            self.eye = Patches(size, patch, reads, layers)
            initialise(self.eye, reads.resolved())
        writes = config.writes_with
        self.hand: LSTMDecoder | TransformerDecoder
        if isinstance(writes, RecurrentConfig):
            self.hand = LSTMDecoder(writes, config.reads_with.resolved())
        else:
            self.hand = TransformerDecoder(writes)

    @property
    def embed(self) -> nn.Module:
        """That of the words."""
        return self.hand.embed

    @property
    def head(self) -> nn.Module:
        """The decoder's."""
        return self.hand.head

    def encode(
        self,
        source: Tensor,
        lengths: Lengths = None,
        mask: Mask | None = None,
        *,
        source_lengths: Lengths = None,
    ) -> Memory:
        """Look at pictures (rows, 3, size, size), bytes: a vector for each place of the grid."""
        if lengths is not None or mask is not None or source_lengths is not None:
            raise RegardError("pictures are all of one size; leave out lengths and mask")
        values = self.eye(source)  # (rows, places, width)
        return Memory(values, None, values.mean(1))

    def hidden(
        self,
        tokens: Tensor,
        memory: Memory | None = None,
        state: State | None = None,
        *,
        lengths: Lengths = None,
        mask: Mask | None = None,
    ) -> Tensor:
        """The decoder's last hidden vectors (rows, new, width)."""
        return self.hand.hidden(tokens, memory, state, lengths=lengths, mask=mask)

    def start(self, batch_size: int, capacity: int, *, return_attention: bool = False) -> State:
        """An empty state of the decoder."""
        return self.hand.start(batch_size, capacity, return_attention=return_attention)
