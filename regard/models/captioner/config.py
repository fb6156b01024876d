"""Everything that tells one captioner from another (M8), as a frozen, checked value."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

from regard.errors import Problems, nearest
from regard.models.config import ModelConfig
from regard.models.recurrent.config import RecurrentConfig
from regard.models.transformer.config import TransformerConfig

Encoder = Literal["cnn", "patches"]
Decoder = Literal["lstm", "transformer"]
LARGEST = {
    "vocabulary": 1 << 26,
    "picture": 1 << 12,
    "patch": 1 << 8,
    "encoder_layers": 64,
    "layers": 64,
    "width": 1 << 14,
    "heads": 1 << 10,
}


@dataclass(frozen=True)
class CaptionConfig(ModelConfig):
    """An encoder of pictures, and a decoder of text that attends to its grid."""

    family: ClassVar[str] = "captioner"
    kind: ClassVar[Literal["captioner"]] = "captioner"

    vocabulary: int = 50257
    context: int = 64  # tokens of a caption, its end included
    picture: int = 64  # pixels of a side
    patch: int = 8  # pixels of a side that one place of the grid stands for
    encoder: Encoder = "cnn"
    decoder: Decoder = "transformer"
    encoder_layers: int = 2  # cnn: residual blocks for each halving; patches: of the Transformer
    layers: int = 3  # of the decoder: to name what is left of another thing takes two looks
    width: int = 128
    heads: int = 4  # of Transformers, and of an LSTM's looks
    dropout: float = 0.1

    def __post_init__(self) -> None:
        problems = Problems("model settings")
        for name, known in (("encoder", get_args(Encoder)), ("decoder", get_args(Decoder))):
            value = getattr(self, name)
            fits = value in known
            problems.require(fits, f"{name} cannot be {value!r}; {nearest(str(value), known)}")
        for name, most in {**LARGEST, "context": 1 << 16}.items():
            value = getattr(self, name)
            fits = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
            problems.require(
                fits, f"{name} must be a whole number from 1 to {most:,}, not {value!r}"
            )
        share = self.dropout
        fine = isinstance(share, int | float) and not isinstance(share, bool) and 0 <= share < 1
        problems.require(fine, f"dropout must be in [0, 1), not {share!r}")
        problems.report()
        self._check_fit()

    def _check_fit(self) -> None:
        """Settings that are fine each but not together."""
        problems = Problems("model settings")
        power = self.patch >= 2 and self.patch & (self.patch - 1) == 0
        if self.encoder == "cnn":
            problems.require(power, f"patch must be a power of 2 for a cnn, not {self.patch}")
        problems.require(
            self.picture % self.patch == 0,
            f"patches of {self.patch} pixels do not fill a picture of {self.picture}",
        )
        problems.require(
            self.width % self.heads == 0 and self.width % 8 == 0,
            f"width {self.width} must be a multiple of 8 and of {self.heads} heads",
        )
        problems.report()

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
                attention="dot",  # by heads, behind each layer: `LSTMDecoder`
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
    def ties_output(self) -> bool:
        return self.writes_with.ties_output

    def module(self) -> Any:
        from regard.models.captioner.model import Captioner

        return Captioner(self)
