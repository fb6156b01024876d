"""Everything that tells one recurrent model from another (M5–M7), as a frozen, checked value."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from regard.fields import Range, Share
from regard.models.config import Ability, ModelConfig, SourceVocabulary, Vocabulary

Name = Literal["elman", "gru", "lstm"]
Attention = Literal["none", "additive", "dot", "general"]
Kind = Literal["decoder", "encoder-decoder"]
FOR_PAIRS = {  # what a language model has no use for, and how it is left out
    "attention": "none",
    "input_feeding": False,
    "bidirectional": True,
    "source_vocabulary": 0,
    "encoder_layers": 0,
}

ShareOrUsual = Annotated[float, Range(0, 1, below=True, also=-1)]


@dataclass(frozen=True)
class RecurrentConfig(ModelConfig):
    """A recurrent language model, or an encoder–decoder with or without attention."""

    family: ClassVar[str] = "recurrent"
    context: ClassVar[int] = 1 << 26  # a text may be as long as one likes

    kind: Kind = "decoder"
    cell: Name = "lstm"
    vocabulary: Vocabulary = 50257
    source_vocabulary: SourceVocabulary = 0  # 0: source and target share one
    layers: Annotated[int, Range(1, 64)] = 2  # of the decoder
    encoder_layers: Annotated[int, Range(0, 64)] = 0  # 0: as many as layers
    # of embeddings, and of what is multiplied with the output matrix
    width: Annotated[int, Range(1, 1 << 16)] = 512
    # of cells; 0: width. The encoder's directions have half of it each
    hidden: Annotated[int, Range(0, 1 << 16)] = 0
    bidirectional: bool = True  # the encoder reads from both ends
    attention: Attention = "none"  # none: the decoder has one vector of the source (M6)
    input_feeding: bool = False  # steps read what attention gave before; without it, the one vector
    tied: bool = True  # output matrix = embedding
    dropout: Share = 0.0  # of embeddings, between layers and of outputs
    input_dropout: ShareOrUsual = -1.0  # of embeddings; -1: dropout
    output_dropout: ShareOrUsual = -1.0  # of outputs; -1: dropout
    variational: bool = False  # dropout takes the same places at all positions of a row
    weight_dropout: Share = 0.0  # of the matrices from step to step
    embedding_dropout: Share = 0.0  # of whole words

    def disagreements(self, wrong: AbstractSet[str]) -> Iterator[str]:
        if wrong:
            return
        if self.kind == "decoder":
            for name, idle in FOR_PAIRS.items():
                if getattr(self, name) != idle:
                    yield f"{name} is for encoder–decoders; leave it out"
        elif self.bidirectional and (self.hidden or self.width) % 2:
            odd = self.hidden or self.width
            yield f"two directions share {odd} places in halves; choose an even number"

    @property
    def abilities(self) -> frozenset[Ability]:
        carried = {Ability.CARRY, Ability.REGULARISE} if self.kind == "decoder" else set()
        more = {Ability.RESIZE} | carried
        return super().abilities | more

    @property
    def vector_width(self) -> int:
        tied = self.kind == "decoder" and self.tied
        return self.width if tied else self.resolved().hidden

    @property
    def ties_output(self) -> bool:
        return self.tied

    def module(self) -> Any:
        from regard.models.recurrent.encoder_decoder import RecurrentEncoderDecoder
        from regard.models.recurrent.model import RecurrentDecoder

        return (RecurrentDecoder if self.kind == "decoder" else RecurrentEncoderDecoder)(self)

    def resolved(self) -> "RecurrentConfig":
        """Nothing left open."""
        between = self.dropout
        return replace(
            self,
            hidden=self.hidden or self.width,
            encoder_layers=(self.encoder_layers or self.layers) * (self.kind == "encoder-decoder"),
            input_dropout=between if self.input_dropout == -1 else self.input_dropout,
            output_dropout=between if self.output_dropout == -1 else self.output_dropout,
        )
