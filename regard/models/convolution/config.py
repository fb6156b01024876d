"""Everything that tells one convolutional model from another (M9), as a frozen, checked value."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from regard.fields import Range, Share
from regard.models.config import Ability, ModelConfig, SourceVocabulary, Vocabulary

Kind = Literal["decoder", "encoder-decoder"]
FARTHEST = 1 << 16  # tokens; a state holds as many vectors, of width 256 in 64 MB a row


@dataclass(frozen=True)
class ConvolutionConfig(ModelConfig):
    """A causal convolutional language model, or an encoder–decoder with attention."""

    family: ClassVar[str] = "convolution"
    context: ClassVar[int] = 1 << 26  # a text may be as long as one likes

    kind: Kind = "decoder"
    vocabulary: Vocabulary = 50257
    source_vocabulary: SourceVocabulary = 0  # 0: source and target share one
    layers: Annotated[int, Range(1, 128)] = 8  # of the decoder
    encoder_layers: Annotated[int, Range(0, 128)] = 0  # 0: as many as layers
    width: Annotated[int, Range(1, 1 << 16)] = 256  # channels of every layer
    kernel: Annotated[int, Range(1, 1 << 10)] = 3  # positions that a layer looks at
    # of the gaps between them from layer to layer; 2: 1, 2, 4, …
    dilation_growth: Annotated[int, Range(1, 8)] = 1
    # layers after which the gaps begin at 1 again; 0: never
    dilation_cycle: Annotated[int, Range(0, 128)] = 0
    heads: Annotated[int, Range(1, 1 << 10)] = 1  # of attention to a source
    tied: bool = True  # output matrix = embedding
    dropout: Share = 0.0  # of embeddings and of what layers add

    def disagreements(self, wrong: AbstractSet[str]) -> Iterator[str]:
        if wrong:
            return
        if self.kind == "decoder":
            for name, idle in (("source_vocabulary", 0), ("encoder_layers", 0), ("heads", 1)):
                if getattr(self, name) != idle:
                    yield f"{name} is for encoder–decoders; leave it out"
        else:
            if self.kernel % 2 == 0:
                odd = f"choose an odd kernel, not {self.kernel}"
                yield f"an encoder looks as far ahead as back; {odd}"
            if self.width % self.heads:
                yield f"{self.heads} heads must divide width {self.width}"
            if self.width % 2:
                even = f"so width must be even, not {self.width}"
                yield f"positions of a source come in pairs, {even}"
        most = max(self.layers, self.encoder_layers)
        if self._reach(most) > FARTHEST:
            yield (
                f"{most} layers would look more than {FARTHEST:,} tokens away; "
                "lower layers or dilation_growth"
            )

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
        """The receptive field of the encoder: this many source tokens, half of them ahead."""
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
