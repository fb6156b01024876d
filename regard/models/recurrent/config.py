"""Everything that tells one recurrent model from another (M5–M7), as a frozen, checked value."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

from regard.errors import Problems, nearest
from regard.models.config import Ability, ModelConfig

Name = Literal["elman", "gru", "lstm"]
Attention = Literal["none", "additive", "dot", "general"]
Kind = Literal["decoder", "encoder-decoder"]
LARGEST = {
    "vocabulary": 1 << 26,
    "source_vocabulary": 1 << 26,
    "layers": 64,
    "encoder_layers": 64,
    "width": 1 << 16,
    "hidden": 1 << 16,
}
FOR_PAIRS = {  # what a language model has no use for, and how it is left out
    "attention": "none",
    "input_feeding": False,
    "bidirectional": True,
    "source_vocabulary": 0,
    "encoder_layers": 0,
}
MAY_BE_0 = ("source_vocabulary", "encoder_layers", "hidden")
SHARES = ("dropout", "weight_dropout", "embedding_dropout")


@dataclass(frozen=True)
class RecurrentConfig(ModelConfig):
    """A recurrent language model, or an encoder–decoder with or without attention."""

    family: ClassVar[str] = "recurrent"
    context: ClassVar[int] = 1 << 26  # a text may be as long as one likes

    kind: Kind = "decoder"
    cell: Name = "lstm"
    vocabulary: int = 50257
    source_vocabulary: int = 0  # 0: source and target share one
    layers: int = 2  # of the decoder
    encoder_layers: int = 0  # 0: as many as layers
    width: int = 512  # of embeddings, and of what is multiplied with the output matrix
    hidden: int = 0  # of cells; 0: width. The encoder's directions have half of it each
    bidirectional: bool = True  # the encoder reads from both ends
    attention: Attention = "none"  # none: the decoder has one vector of the source (M6)
    input_feeding: bool = False  # steps read what attention gave before; without it, the one vector
    tied: bool = True  # output matrix = embedding
    dropout: float = 0.0  # of embeddings, between layers and of outputs
    input_dropout: float = -1.0  # of embeddings; -1: dropout
    output_dropout: float = -1.0  # of outputs; -1: dropout
    variational: bool = False  # dropout takes the same places at all positions of a row
    weight_dropout: float = 0.0  # of the matrices from step to step
    embedding_dropout: float = 0.0  # of whole words

    def __post_init__(self) -> None:
        problems = Problems("model settings")
        choices = {"kind": get_args(Kind), "cell": get_args(Name), "attention": get_args(Attention)}
        for name, known in choices.items():
            value = getattr(self, name)
            fits = value in known
            problems.require(fits, f"{name} cannot be {value!r}; {nearest(str(value), known)}")
        for name, most in LARGEST.items():
            value, least = getattr(self, name), 0 if name in MAY_BE_0 else 1
            fits = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
            problems.require(
                fits, f"{name} must be a whole number from {least} to {most:,}, not {value!r}"
            )
        for name in ("bidirectional", "input_feeding", "tied", "variational"):
            value = getattr(self, name)
            problems.require(isinstance(value, bool), f"{name} must be true or false")
        for name in SHARES:
            _check_share(name, getattr(self, name), problems)
        for name in ("input_dropout", "output_dropout"):
            value = getattr(self, name)
            if value != -1:
                _check_share(name, value, problems, " or -1")
        problems.report()
        self._check_fit()

    def _check_fit(self) -> None:
        """Settings that are fine each but not together."""
        problems = Problems("model settings")
        pairs = self.kind == "encoder-decoder"
        if not pairs:
            for name, idle in FOR_PAIRS.items():
                left_out = getattr(self, name) == idle
                problems.require(left_out, f"{name} is for encoder–decoders; leave it out")
        elif self.bidirectional and (self.hidden or self.width) % 2:
            odd = self.hidden or self.width
            problems.add(f"two directions share {odd} places in halves; choose an even number")
        problems.report()

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


def _check_share(name: str, value: object, problems: Problems, more: str = "") -> None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1
    problems.require(fits, f"{name} must be in [0, 1){more}, not {value!r}")
