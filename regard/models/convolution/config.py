"""Everything that tells one convolutional model from another (M9), as a frozen, checked value."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

from regard.errors import Problems, nearest
from regard.models.config import Ability, ModelConfig

Kind = Literal["decoder", "encoder-decoder"]
LARGEST = {
    "vocabulary": 1 << 26,
    "source_vocabulary": 1 << 26,
    "layers": 128,
    "encoder_layers": 128,
    "width": 1 << 16,
    "kernel": 1 << 10,
    "dilation_growth": 8,
    "dilation_cycle": 128,
    "heads": 1 << 10,
}
MAY_BE_0 = ("source_vocabulary", "encoder_layers", "dilation_cycle")
FARTHEST = 1 << 16  # tokens; a state holds as many vectors, of width 256 in 64 MB a row


@dataclass(frozen=True)
class ConvolutionConfig(ModelConfig):
    """A causal convolutional language model, or an encoder–decoder with attention."""

    family: ClassVar[str] = "convolution"
    context: ClassVar[int] = 1 << 26  # a text may be as long as one likes

    kind: Kind = "decoder"
    vocabulary: int = 50257
    source_vocabulary: int = 0  # 0: source and target share one
    layers: int = 8  # of the decoder
    encoder_layers: int = 0  # 0: as many as layers
    width: int = 256  # channels of every layer
    kernel: int = 3  # positions that a layer looks at
    dilation_growth: int = 1  # of the gaps between them from layer to layer; 2: 1, 2, 4, …
    dilation_cycle: int = 0  # layers behind which the gaps begin at 1 again; 0: never
    heads: int = 1  # of attention to a source
    tied: bool = True  # output matrix = embedding
    dropout: float = 0.0  # of embeddings and of what layers add

    def __post_init__(self) -> None:
        problems = Problems("model settings")
        kind, known = self.kind, get_args(Kind)
        problems.require(kind in known, f"kind cannot be {kind!r}; {nearest(str(kind), known)}")
        for name, most in LARGEST.items():
            value, least = getattr(self, name), 0 if name in MAY_BE_0 else 1
            fits = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
            problems.require(
                fits, f"{name} must be a whole number from {least} to {most:,}, not {value!r}"
            )
        problems.require(isinstance(self.tied, bool), "tied must be true or false")
        share = self.dropout
        fine = isinstance(share, int | float) and not isinstance(share, bool) and 0 <= share < 1
        problems.require(fine, f"dropout must be in [0, 1), not {share!r}")
        problems.report()
        self._check_fit()

    def _check_fit(self) -> None:
        """Settings that are fine each but not together."""
        problems = Problems("model settings")
        if self.kind == "decoder":
            for name, idle in (("source_vocabulary", 0), ("encoder_layers", 0), ("heads", 1)):
                problems.require(
                    getattr(self, name) == idle, f"{name} is for encoder–decoders; leave it out"
                )
        else:
            problems.require(
                self.kernel % 2 == 1,
                f"an encoder looks as far ahead as back; choose an odd kernel, not {self.kernel}",
            )
            problems.require(
                self.width % self.heads == 0,
                f"{self.heads} heads must divide width {self.width}",
            )
            problems.require(
                self.width % 2 == 0,
                f"positions of a source come in pairs, so width must be even, not {self.width}",
            )
        most = max(self.layers, self.encoder_layers)
        problems.require(
            self._reach(most) <= FARTHEST,
            f"{most} layers would look more than {FARTHEST:,} tokens away; "
            "lower layers or dilation_growth",
        )
        problems.report()

    @property
    def gaps(self) -> tuple[int, ...]:
        """How far apart the positions are that each layer of the decoder looks at."""
        return gaps(self.layers, self.dilation_growth, self.dilation_cycle)

    @property
    def reach(self) -> int:
        """The receptive field: how many tokens, itself included, decide what a position tells."""
        return self._reach(self.layers)

    @property
    def source_reach(self) -> int:
        """The same of an encoder: so many of a source, half of them ahead, decide a vector."""
        return self._reach(self.encoder_layers or self.layers)

    def _reach(self, layers: int) -> int:
        return 1 + (self.kernel - 1) * sum(gaps(layers, self.dilation_growth, self.dilation_cycle))

    @property
    def abilities(self) -> frozenset[Ability]:
        return super().abilities | {Ability.RESIZE}

    @property
    def ties_output(self) -> bool:
        return self.tied

    def module(self) -> Any:
        from regard.models.convolution.model import ConvolutionDecoder, ConvolutionEncoderDecoder

        return (ConvolutionDecoder if self.kind == "decoder" else ConvolutionEncoderDecoder)(self)

    def resolved(self) -> "ConvolutionConfig":
        """Nothing left open."""
        pairs = self.kind == "encoder-decoder"
        return replace(self, encoder_layers=(self.encoder_layers or self.layers) * pairs)


def gaps(layers: int, growth: int, cycle: int) -> tuple[int, ...]:
    """1, growth, growth², …, from 1 again behind `cycle` layers."""
    return tuple(growth ** (layer % cycle if cycle else layer) for layer in range(layers))
