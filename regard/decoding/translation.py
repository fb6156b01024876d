"""Many sources translated by beam search, in order, in batches of about the same length."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from threading import Event

from torch import Tensor

from regard.decoding.decode_batch import End
from regard.decoding.parallel_batches import side_by_side
from regard.decoding.search.beam import Candidate, Hypothesis, SearchResult, search
from regard.decoding.search.minimum_risk import least_risk
from regard.decoding.settings import Beam, Sampling, require_whole
from regard.decoding.streams import MOST_TEXTS, Completion, continue_all
from regard.decoding.text_model import Given, TextModel, batches
from regard.errors import Problems, RegardError
from regard.models.config import Ability

LISTED = 20  # lines that cannot be translated, one by one; the others are counted
WINDOW = 16  # batches that are sorted by length together, when lines come one by one


@dataclass(frozen=True)
class Translation:
    """One way to say a source in the other language."""

    text: str
    ids: list[int]
    logprob: float
    score: float  # what it was chosen by: with its penalties, or its expected utility
    source: list[int]  # as the model read it, its end included
    attention: Tensor | None = None  # (target tokens and the end, source tokens)
    tree: list[list[Candidate]] | None = None  # of the whole search
    end: End = "end"  # or "limit", where it was cut off


def limit_for(source: int, context: int, asked: int = 0) -> int:
    """How many tokens, the end included, may be written for a source of so many."""
    return min(asked or int(1.5 * source) + 10, context)


def translate_ids(
    speaker: TextModel,
    sources: Sequence[Sequence[int]],
    beam: Beam,
    *,
    prefixes: Sequence[Sequence[int]] | None = None,
    limit: int = 0,
    over: Event | None = None,
) -> list[list[Translation]]:
    """The best translations of each source (token ids, their end included), as one batch.

    `over` is what `search` looks at.
    """
    begins = [[]] * len(sources) if prefixes is None else prefixes
    prompts = [[speaker.signs.begin, *prefix] for prefix in begins]
    limits = [
        min(limit_for(len(source), speaker.context, limit), speaker.context + 1 - len(prompt))
        for source, prompt in zip(sources, prompts, strict=True)
    ]
    if limits and min(limits) < 1:
        raise RegardError(f"a forced beginning leaves no room in {speaker.context:,} positions")
    found = search(
        speaker.module,
        prompts,
        limits,
        beam,
        signs=speaker.signs,
        device=speaker.device,
        memory=speaker.encode(sources),
        over=over,
    )
    return [
        [_translation(speaker, source, prefix, hypothesis, one) for hypothesis in one.hypotheses]
        for source, prefix, one in zip(sources, begins, found, strict=True)
    ]


def _translation(
    speaker: TextModel,
    source: Sequence[int],
    prefix: Sequence[int],
    hypothesis: Hypothesis,
    found: SearchResult,
) -> Translation:
    ids = [*prefix, *hypothesis.ids]
    attention = found.looked(hypothesis)
    return Translation(
        speaker.text(ids),
        ids,
        hypothesis.logprob,
        hypothesis.worth,
        list(source),
        None if attention is None else attention[:, : len(source)],
        found.tree,
        "end" if hypothesis.ended else "limit",
    )


def translated(
    speaker: TextModel,
    lines: Iterable[Given],
    beam: Beam,
    *,
    rows: int = 32,
    limit: int = 0,
    prefix: Given = "",
    window: int = WINDOW,
    first: int = 1,
    told: Callable[[list[Translation]], None] = lambda best: None,
) -> Iterator[list[Translation]]:
    """For each line, in order, its best translations; an empty line has one that is empty.

    So many `rows` are computed at once, of about the same length: `window` batches are gathered,
    sorted and given out. `prefix` is how every translation must begin, `first` the number of the
    first line, for messages. `told` hears the best ones of each batch at once.
    """
    speaker.require(Ability.TRANSLATE, what="translate")
    problems = Problems("translate")
    require_whole(problems, "rows", rows, 1)
    require_whole(problems, "limit", limit, 0)
    problems.report()
    rows, limit = int(rows), int(limit)  # from NumPy's, too
    forced = speaker.beginning(prefix)
    given = enumerate(lines, first)
    while some := list(islice(given, rows * window)):
        sources = _sources(speaker, some)
        found: list[list[Translation]] = [
            [Translation("", [], 0.0, 0.0, [])] if not source else [] for source in sources
        ]
        wanted = [index for index, source in enumerate(sources) if source]
        parts = batches([len(sources[index]) for index in wanted], rows)
        chosen = [[wanted[which] for which in part] for part in parts]
        work = partial(_chosen, speaker, sources, beam, forced, limit)
        for part, answers in side_by_side(work, chosen, speaker.module):
            told([answer[0] for answer in answers])
            for index, answer in zip(part, answers, strict=True):
                found[index] = answer
        yield from found


def _chosen(
    speaker: TextModel,
    sources: Sequence[Sequence[int]],
    beam: Beam,
    forced: Sequence[int],
    limit: int,
    chosen: Sequence[int],
    over: Event,
) -> list[list[Translation]]:
    """The best translations of the chosen sources, as one batch."""
    some = [sources[index] for index in chosen]
    prefixes = [forced] * len(some)
    return translate_ids(speaker, some, beam, prefixes=prefixes, limit=limit, over=over)


def translate_all(
    speaker: TextModel, sources: Sequence[Sequence[int]], beam: Beam, rows: int = 32
) -> list[list[Translation]]:
    """The same for sources that are ids already, all at once."""
    return list(translated(speaker, sources, beam, rows=rows, window=max(1, len(sources))))


def check_sources(speaker: TextModel, lines: Iterable[Given], first: int = 1) -> None:
    """Refuse lines that cannot be translated, all of them at once; `first` is a line's number."""
    problems = Problems("translate", LISTED)
    for number, line in enumerate(lines, first):
        _source(speaker, number, line, problems)
    problems.report()


def without_problems(speaker: TextModel, lines: Sequence[Given]) -> int:
    """How many of the lines come before the first that cannot be translated."""
    problems = Problems("translate")
    for count, line in enumerate(lines):
        _source(speaker, count, line, problems)
        if problems.found:
            return count
    return len(lines)


def _sources(speaker: TextModel, lines: Sequence[tuple[int, Given]]) -> list[list[int]]:
    """Numbered lines as the model reads them, nothing for blank ones; all that is wrong is told."""
    problems = Problems("translate", LISTED)
    found = [_source(speaker, number, line, problems) for number, line in lines]
    problems.report()
    return found


def _source(speaker: TextModel, number: int, line: Given, problems: Problems) -> list[int]:
    try:
        blank = not (line.strip() if isinstance(line, str) else len(line))
        return [] if blank else speaker.source(line)
    except RegardError as error:
        problems.add(f"line {number:,}: {error}")
    except TypeError:
        problems.add(f"line {number:,} must be text or token ids, not {line!r:.40}")
    return []


def least_risky(
    speaker: TextModel,
    lines: Iterable[Given],
    sampling: Sampling,
    *,
    samples: int,
    utility: str = "chrf",
    rows: int = 32,
    first: int = 1,
    named: Callable[[str], str] = str,
) -> Iterator[list[Translation]]:
    """For each line the sample that agrees best with all samples: minimum Bayes risk.

    Samples of several lines are drawn together, up to so many `rows`, and all of one line. `first`
    is the number of the first line, `named` a setting's name, both for messages.
    """
    speaker.require(Ability.TRANSLATE, what="translate")
    if speaker.tokenizer is None:
        raise RegardError("samples are compared as texts, and this model came without a tokenizer")
    problems = Problems("translate")
    require_whole(problems, named("mbr"), samples, 1, MOST_TEXTS)
    require_whole(problems, named("rows"), rows, 1)
    problems.report()
    samples, rows = int(samples), int(rows)
    given = enumerate(lines, first)
    while some := list(islice(given, max(1, rows // samples))):
        sources = _sources(speaker, some)
        real = [source for source in sources if source]
        limits = [limit_for(len(source), speaker.context, sampling.limit) for source in real]
        asked = [replace(sampling, limit=limit, logprobs=0) for limit in limits]
        drawn = iter(continue_all(speaker, real, asked, n=samples).whole())
        for source in sources:
            if source:
                yield [_safest(list(islice(drawn, samples)), source, utility)]
            else:
                yield [Translation("", [], 0.0, 0.0, [])]


def _safest(written: Sequence[Completion], source: list[int], utility: str) -> Translation:
    """Of the samples of one source, the one that agrees best with all."""
    choice = least_risk([one.text for one in written], utility)
    best, worth = written[choice.index], choice.utilities[choice.index]
    end: End = "end" if best.end == "end" else "limit"
    return Translation(best.text, best.ids, best.logprob or 0.0, worth, source, end=end)
