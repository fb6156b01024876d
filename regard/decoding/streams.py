"""Texts written behind prompts, or from sources, as they come or whole (M21)."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from regard.decoding.decode_batch import DecodeBatch, End, Token
from regard.decoding.incremental_text import Spelling, Stops, checked_stops
from regard.decoding.search.beam import Candidate, Hypothesis, SearchResult, search
from regard.decoding.search.speculative import Speculation
from regard.decoding.session import check_fits
from regard.decoding.settings import SEEDS, Beam, Sampling, require_whole
from regard.decoding.text_model import Given, TextModel
from regard.errors import Problems, RegardError
from regard.models.config import Ability

MOST_TEXTS = 4096  # of one prompt, side by side


@dataclass(frozen=True)
class Delta:
    """What one step adds to one text."""

    row: int
    text: str  # whole characters; may be empty while one is not whole or a stop string may begin
    tokens: tuple[Token, ...]
    end: End | None = None  # why the text is at its end


@dataclass(frozen=True)
class Completion:
    """A whole text."""

    text: str  # without the prompt, what ends it, and stop strings
    tokens: tuple[Token, ...]  # all that were drawn
    end: End
    logprob: float | None = None  # of all tokens together, if it was asked for
    score: float | None = None  # of a beam search: what it was chosen by
    tree: list[list[Candidate]] | None = None  # of the whole search, if it was recorded

    @property
    def ids(self) -> list[int]:
        """Without what ends a text."""
        return [token.id for token in self.tokens if token.end != "end"]


class Stepper(Protocol):
    """What takes rows further: `DecodeBatch`, `Speculation`, or `Nothing` where there are none."""

    @property
    def open(self) -> bool: ...

    def stop(self, number: int) -> None: ...

    def step(self) -> list[Token]: ...


@dataclass
class Stream:
    """Texts that are being written; iterate over it for the pieces as they come."""

    speaker: TextModel
    steps: Stepper
    spellings: list[Spelling | None]
    stops: list[Stops]
    ended: list[bool] = field(init=False)
    _coming: deque[Token] = field(default_factory=deque, init=False)  # of a step not given out yet
    _given: list[list[Delta]] = field(init=False)  # of each text, all that was given out

    def __post_init__(self) -> None:
        self.ended = [False] * len(self.stops)
        self._given = [[] for _ in self.stops]

    @property
    def acceptance(self) -> float | None:
        """The share of a draft's proposals that were taken; None without a draft."""
        return self.steps.acceptance if isinstance(self.steps, Speculation) else None

    def __iter__(self) -> Iterator[Delta]:
        while self._coming or self.steps.open:
            self._coming.extend(() if self._coming else self.steps.step())
            while self._coming:
                token = self._coming.popleft()
                if not self.ended[token.row]:
                    piece = self._piece(token)
                    self._given[piece.row].append(piece)
                    yield piece
        self.steps.step()  # no row is open: what models kept for them is freed

    def _piece(self, token: Token) -> Delta:
        row, end = token.row, token.end
        spelling, stops = self.spellings[row], self.stops[row]
        text = ""
        if spelling is not None:
            new = "" if token.id in self.speaker.signs.ends else spelling.add(token.id)
            text = stops.add(new)
            if end is not None and not stops.stopped:
                text += stops.add(spelling.end())
            if stops.stopped:
                end = "stop"
                self.steps.stop(row)
            elif end is not None:
                text += stops.end()
        self.ended[row] = end is not None
        return Delta(row, text, (token,), end)

    def whole(self) -> list[Completion]:
        """All texts, when each is at its end; with what was given out before."""
        deque(self, maxlen=0)
        return [joined(pieces) for pieces in self._given]


def joined(pieces: Sequence[Delta]) -> Completion:
    """The pieces of one text as a whole."""
    tokens = tuple(token for piece in pieces for token in piece.tokens)
    known = [token.logprob for token in tokens if token.logprob is not None]
    end = pieces[-1].end if pieces else None
    return Completion(
        "".join(piece.text for piece in pieces),
        tokens,
        end or "limit",
        sum(known) if tokens and len(known) == len(tokens) else None,
    )


def continue_all(
    speaker: TextModel,
    given: Sequence[Given],
    asked: Sampling | Sequence[Sampling],
    *,
    n: int = 1,
    stop: Iterable[str] = (),
    draft: TextModel | None = None,
    ahead: int = 4,
) -> Stream:
    """Begin `n` texts behind each prompt, or from each source.

    `asked` is for all, or one for each that is given. The i-th text of a prompt is drawn with its
    seed + i. `draft` proposes `ahead` tokens at a time, which the model accepts or replaces.
    """
    speaker.require(Ability.CONTINUE, Ability.TRANSLATE, what="write texts")
    problems = Problems("texts")
    require_whole(problems, "n", n, 1, MOST_TEXTS)
    problems.report()
    n = int(n)  # from NumPy's, too
    strings = checked_stops(stop)
    if strings and speaker.tokenizer is None:
        raise RegardError("stop strings need a tokenizer, and this model came without one")
    each = _each(asked, len(given))
    last = max((one.seed for one in each), default=0)
    if last + n > SEEDS:
        raise RegardError(
            f"seed must be {SEEDS - n} or less with n {n}: the last text's, seed + n - 1, must be "
            f"below 2 ** 63, not {last + n - 1}"
        )
    settings = [replace(one, seed=one.seed + i) for one in each for i in range(n)]
    copies = [index for index in range(len(given)) for _ in range(n)]
    steps = _steps(speaker, given, settings, copies, draft, ahead)
    spellings: list[Spelling | None] = [None] * len(copies)
    if speaker.tokenizer is not None:
        before = [_before(speaker, one) for one in given]
        spellings = [Spelling(speaker.tokenizer, *before[which]) for which in copies]
    return Stream(speaker, steps, spellings, [Stops(strings) for _ in copies])


def _each(asked: object, prompts: int) -> list[Sampling]:
    """The settings of each prompt, if they were given for all or one by one."""
    each = [asked] * prompts if isinstance(asked, Sampling) else asked
    if not isinstance(each, Sequence) or not all(isinstance(one, Sampling) for one in each):
        raise RegardError(f"settings are a Sampling, or one for each prompt, not {asked!r:.60}")
    if len(each) != prompts:
        raise RegardError(f"{prompts} prompts need as many settings, not {len(each)}")
    return list(each)


class Nothing:
    """Steps without rows: they are at their end."""

    open = False

    def stop(self, number: int) -> None:
        """There is no row that could."""

    def step(self) -> list[Token]:
        return []


def _steps(
    speaker: TextModel,
    given: Sequence[Given],
    settings: Sequence[Sampling],
    copies: Sequence[int],
    draft: TextModel | None,
    ahead: int,
) -> Stepper:
    """The rows behind their prompts, or before what they write from a source."""
    if not given:
        return Nothing()
    sources = _each_read(speaker.source, given, "source") if speaker.reads else []
    prompts = [[speaker.signs.begin] for _ in sources]
    if not speaker.reads:
        prompts = _each_read(partial(_prompt, speaker), given, "prompt")
    memory = speaker.encode(sources) if sources else None
    common: dict[str, Any] = {
        "context": speaker.context,
        "signs": speaker.signs,
        "device": speaker.device,
        "memory": memory,
        "copies": copies,
    }
    if draft is None:
        return DecodeBatch.begin(speaker.module, prompts, settings, **common)
    needed = speaker.module.config.abilities & {Ability.CONTINUE, Ability.TRANSLATE}
    draft.require(*needed, who="the draft", what="generate with this model")
    speaker.require_words_of(draft, "the draft")
    longest = max(map(len, sources), default=0)
    if longest > draft.context:
        raise RegardError(
            f"a source of {longest:,} tokens is too long for the draft; it reads {draft.context:,}"
        )
    return Speculation.begin(
        speaker.module,
        draft.module,
        prompts,
        settings,
        draft_context=draft.context,
        draft_memory=draft.encode(sources) if sources else None,
        ahead=ahead,
        **common,
    )


def _prompt(speaker: TextModel, given: Given) -> list[int]:
    """What a row begins with, if the model has room for it."""
    ids = speaker.prompt(given)
    check_fits([ids], speaker.context)
    return ids


def _each_read(
    read: Callable[[Given], list[int]], given: Sequence[Given], what: str
) -> list[list[int]]:
    """All that is given as ids; of several, the one that cannot be read is named."""
    found = []
    for number, one in enumerate(given, 1):
        try:
            found.append(read(one))
        except RegardError as error:
            which = f"{what} {number} of {len(given)}: " if len(given) > 1 else ""
            raise RegardError(f"{which}{error}") from None
    return found


def search_all(
    speaker: TextModel, given: Sequence[Given], beam: Beam, limit: int = 200
) -> list[list[Completion]]:
    """The best continuations of each prompt by beam search; the best first."""
    if speaker.reads:
        raise RegardError("this model writes from sources; search with `translate` and its beam")
    speaker.require(Ability.CONTINUE, what="write texts")
    prompts = _each_read(partial(_prompt, speaker), given, "prompt")
    if limit < 1:
        raise RegardError(f"at least one token must be asked for, not {limit}")
    limits = [min(limit, speaker.context + 1 - len(prompt)) for prompt in prompts]
    found = search(
        speaker.module, prompts, limits, beam, signs=speaker.signs, device=speaker.device
    )
    rows = enumerate(zip(given, limits, found, strict=True))
    return [
        _searched(speaker, one, answer, row, "limit" if most == limit else "room")
        for row, (one, most, answer) in rows
    ]


def _searched(
    speaker: TextModel, given: Given, found: SearchResult, row: int, short: End
) -> list[Completion]:
    """What a search brought for one prompt, as texts; `short` is why one that met no end ends."""

    def text(hypothesis: Hypothesis) -> str:
        if speaker.tokenizer is None:
            return ""
        spelling = Spelling(speaker.tokenizer, *_before(speaker, given))
        return "".join(map(spelling.add, hypothesis.ids)) + spelling.end()

    def tokens(hypothesis: Hypothesis) -> tuple[Token, ...]:
        ids = [*hypothesis.ids, *(() if hypothesis.end is None else (hypothesis.end,))]
        *others, last = (Token(row, token) for token in ids)
        return (*others, replace(last, end=end(hypothesis)))

    def end(hypothesis: Hypothesis) -> End:
        return "end" if hypothesis.ended else short

    return [
        Completion(
            text(one),
            tokens(one),
            end(one),
            one.logprob,
            one.worth,
            found.tree,
        )
        for one in found.hypotheses
    ]


def _before(speaker: TextModel, given: Given) -> tuple[Sequence[int], str]:
    """What stands before a text that is written: the prompt, but not a source."""
    if speaker.reads:
        return (), ""
    ids = speaker.ids(given)
    return ids, given if isinstance(given, str) else speaker.text(ids)
