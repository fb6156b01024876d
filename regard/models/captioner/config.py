"""Everything that tells one captioner from another (M8), as a frozen, checked value."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from regard.fields import Range, Share
from regard.models.config import ModelConfig, Vocabulary
from regard.models.recurrent.config import RecurrentConfig
from regard.models.transformer.config import TransformerConfig

Encoder = Literal["cnn", "patches"]
Decoder = Literal["lstm", "transformer"]


@dataclass(frozen=True)
class CaptionConfig(ModelConfig):
    """An encoder of pictures, and a decoder of text that attends to its grid."""

    family: ClassVar[str] = "captioner"
    kind: ClassVar[Literal["captioner"]] = "captioner"

    vocabulary: Vocabulary = 50257
    context: Annotated[int, Range(1, 1 << 16)] = 64  # tokens of a caption, its end included
    picture: Annotated[int, Range(1, 1 << 12)] = 64  # pixels of a side
    # pixels of a side that one place of the grid stands for
    patch: Annotated[int, Range(1, 1 << 8)] = 8
    encoder: Encoder = "cnn"
    decoder: Decoder = "transformer"
    # cnn: residual blocks for each halving; patches: of the Transformer
    encoder_layers: Annotated[int, Range(1, 64)] = 2
    # of the decoder: to name what is left of another thing takes two looks
    layers: Annotated[int, Range(1, 64)] = 3
    width: Annotated[int, Range(1, 1 << 14)] = 128
    heads: Annotated[int, Range(1, 1 << 10)] = 4  # of Transformers, and of an LSTM's looks
    dropout: Share = 0.1

    def disagreements(self, wrong: AbstractSet[str]) -> Iterator[str]:
        if wrong:
            return
        if self.encoder == "cnn" and (self.patch < 2 or self.patch & (self.patch - 1)):
            yield f"patch must be a power of 2 for a cnn, not {self.patch}"
        if self.picture % self.patch:
            yield f"patches of {self.patch} pixels do not fill a picture of {self.picture}"
        if self.width % self.heads or self.width % 8:
            yield f"width {self.width} must be a multiple of 8 and of {self.heads} heads"

    @property
    def side(self) -> int:
        """Places of a side of the grid."""
        return self.picture // self.patch

    @property
    def writes_with(self) -> TransformerConfig | RecurrentConfig:
        """The decoder's own settings; of an LSTM, those of what is recurrent in it."""
        if self.decoder == "lstm":
            return RecurrentConfig(
                kind="encoder-decoder",
                vocabulary=self.vocabulary,
                layers=self.layers,
                width=self.width,
                attention="dot",  # with heads, after each layer: `LSTMDecoder`
                dropout=self.dropout,
                output_dropout=0.0,
            )
        return replace(self.reads_with, layers=self.layers)

    @property
    def reads_with(self) -> TransformerConfig:
        """Those of a Transformer over patches, and of what stands between LSTMs."""
        return TransformerConfig(
            kind="encoder-decoder",
            vocabulary=self.vocabulary,
            context=self.context,
            layers=self.encoder_layers,
            encoder_layers=self.encoder_layers,
            width=self.width,
            heads=self.heads,
            hidden=4 * self.width,
            activation="gelu",
            positions="sinusoidal",
            scale_embeddings=True,
            dropout=self.dropout,
            initialisation="xavier",
        )

    @property
    def picture_shape(self) -> tuple[int, ...]:
        return 3, self.picture, self.picture

    @property
    def ties_output(self) -> bool:
        return self.writes_with.ties_output

    def module(self) -> Any:
        from regard.models.captioner.model import Captioner

        return Captioner(self)
