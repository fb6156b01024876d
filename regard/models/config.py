"""What the settings of any model tell: what it reads, what it can do, and how it is built.

Each family has a frozen dataclass of its own that derives from `ModelConfig`. Who trains, decodes,
prices or stores a model asks these few questions and never which family it is of. Nothing here
needs torch, so that listings of models and runs need none.
"""

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from regard.errors import Problems, RegardError
from regard.fields import Range, check

Form = Literal["text", "pairs", "images"]  # what a model learns from
# What a model learns: each has an objective (`training/objectives.py`).
Task = Literal["causal", "masked", "sequence-to-sequence", "labels", "captions", "neighbours"]
FORMS: Mapping[Task, Form] = {
    "causal": "text",
    "masked": "text",
    "sequence-to-sequence": "pairs",
    "labels": "pairs",
    "captions": "images",
    "neighbours": "text",
}


class Ability(Enum):
    """What a model can be asked for, in words that follow "models that"."""

    CONTINUE = "continue texts"
    SCORE = "score texts"
    EMBED = "make vectors of texts"
    TRANSLATE = "generate from a source"
    FILL = "fill gaps"
    CLASSIFY = "label texts"
    CAPTION = "describe pictures"
    WORDS = "have vectors of words"
    CARRY = "carry their state from row to row"
    MASK_DOCUMENTS = "keep documents in a row apart"
    RECOMPUTE = "can compute its blocks again going back"
    SHARD = "can be sharded over processes"
    CONVERT = "have products that other kernels can make: int8, packed"
    RESIZE = "can be made wider"
    REGULARISE = "can have its hidden vectors regularised"


OF_TASK: Mapping[Task, tuple[Ability, ...]] = {
    "causal": (Ability.CONTINUE, Ability.SCORE, Ability.EMBED),
    "masked": (Ability.FILL, Ability.EMBED),
    "sequence-to-sequence": (Ability.TRANSLATE, Ability.SCORE, Ability.EMBED),
    "labels": (Ability.CLASSIFY, Ability.TRANSLATE),
    "captions": (Ability.CAPTION,),
    "neighbours": (Ability.WORDS,),
}
COMMANDS: Mapping[Ability, tuple[str, ...]] = {
    Ability.CONTINUE: ("generate",),
    Ability.TRANSLATE: ("translate", "generate"),
    Ability.FILL: ("fill",),
    Ability.CLASSIFY: ("classify",),
    Ability.CAPTION: ("caption",),
    Ability.SCORE: ("score",),
    Ability.EMBED: ("embed",),
    Ability.WORDS: ("words",),
}
SHORT: Mapping[Task, str] = {
    "causal": "continues texts",
    "masked": "fills gaps",
    "sequence-to-sequence": "translates",
    "labels": "labels texts",
    "captions": "describes pictures",
    "neighbours": "holds word vectors",
}


# Beyond this a number is a mistake, and a tensor's size could not be counted in 64 bits.
Vocabulary = Annotated[int, Range(1, 1 << 26)]
SourceVocabulary = Annotated[int, Range(0, 1 << 26)]  # 0: the same as the target's


@dataclass(frozen=True)
class ModelConfig:
    """The settings of one model, checked when they are made."""

    family: ClassVar[str]  # the name of its modules: `models.NAME`, `families.NAME`

    def __post_init__(self) -> None:
        problems = Problems("model settings")
        wrong = check(self, problems)
        for problem in self.disagreements(wrong):
            problems.add(problem)
        problems.report()

    def disagreements(self, wrong: AbstractSet[str]) -> Iterator[str]:
        """Settings that are each fine but not together; `wrong`: those that are not fine."""
        yield from ()

    @property
    def kind(self) -> str:
        """decoder, encoder, encoder-decoder, captioner or vectors."""
        raise NotImplementedError

    @property
    def vocabulary(self) -> int:
        raise NotImplementedError

    @property
    def context(self) -> int:
        """Tokens of the longest row; where there is no limit, a large number."""
        raise NotImplementedError

    @property
    def width(self) -> int:
        """Numbers in a hidden vector."""
        raise NotImplementedError

    @property
    def task(self) -> Task:
        """What it learns."""
        return TASKS[self.kind]

    @property
    def form(self) -> Form:
        """What it learns from."""
        return FORMS[self.task]

    @property
    def reads_text(self) -> bool:
        """Whether it writes from a source text."""
        return self.kind == "encoder-decoder"

    @property
    def reads(self) -> bool:
        """Whether it writes from a source: a text, or a picture."""
        return self.reads_text or self.task == "captions"

    @property
    def unlimited(self) -> bool:
        """Whether a row may be as long as one likes."""
        return "context" not in {f.name for f in fields(self)}

    @property
    def abilities(self) -> frozenset[Ability]:
        """What it can be asked for."""
        return frozenset(OF_TASK[self.task])

    @property
    def vector_width(self) -> int:
        """Numbers in the vector of a text."""
        return self.width

    @property
    def in_words(self) -> str:
        """What it does, and by which commands."""
        named = dict.fromkeys(
            name for ability in COMMANDS if ability in self.abilities for name in COMMANDS[ability]
        )
        return f"{SHORT[self.task]} ({', '.join(f'`{name}`' for name in named)})"

    def require(self, ability: Ability, option: str, who: str = "this model") -> None:
        """Refuse an option that asks for what such a model cannot do."""
        if ability not in self.abilities:
            raise RegardError(f"{option} is for models that {ability.value}; {who} is not one")

    @property
    def about(self) -> str:
        """The model in a few words."""
        return f"a model that {SHORT[self.task]}"

    @property
    def sizes(self) -> Mapping[str, str]:
        """What tells models of one family apart, by column of a table; nothing: words do."""
        return {}

    @property
    def depth(self) -> int:
        """Layers, each of which has weights; 0 where that is not said."""
        return 0

    @property
    def ties_output(self) -> bool:
        """Whether the output matrix is the embedding."""
        return False

    @property
    def uncounted(self) -> str:
        """Why its operations cannot be counted on shapes alone, in a sentence; nothing if so."""
        return ""

    @property
    def picture_shape(self) -> tuple[int, ...]:
        """The shape of a picture that it reads; nothing where it reads none."""
        return ()

    @property
    def unlearnable(self) -> str:
        """Why it cannot be trained, in a sentence; nothing if it can."""
        return ""

    @property
    def by_steps(self) -> bool:
        """Whether it is for people to say how many steps it is trained."""
        return True

    @classmethod
    def parsed(cls, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Settings as TOML spells them, as the fields they are for."""
        return dict(changes)

    def spelled(self) -> dict[str, Any]:
        """All settings but what a tokenizer decides, as TOML spells them."""
        learned = ("vocabulary", "source_vocabulary")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in learned}

    def resolved(self) -> Self:
        """The same with nothing left open."""
        return self

    def module(self) -> Any:
        """The module, freshly initialised where torch makes tensors now."""
        raise NotImplementedError


TASKS: Mapping[str, Task] = {
    "decoder": "causal",
    "encoder": "masked",
    "encoder-decoder": "sequence-to-sequence",
    "captioner": "captions",
    "vectors": "neighbours",
}


@dataclass(frozen=True)
class Preset:
    """A named model."""

    config: ModelConfig
    about: str = ""  # in one sentence


@dataclass(frozen=True)
class Presets:
    """The named models of a family."""

    named: Mapping[str, Preset]
    listed: tuple[str, ...] = ()  # some of those that follow a pattern
    pattern: Callable[[str], ModelConfig | None] = field(default=lambda name: None)

    def find(self, name: str) -> ModelConfig | None:
        """The settings that a name stands for, if it is of this family."""
        return self.named[name].config if name in self.named else self.pattern(name)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return (*self.listed, *self.named)
