"""The figures in plain words. Every sentence is computed; none is known beforehand."""

from collections.abc import Callable, Iterator, Sequence

from regard.comparison.results import Comparison, Result
from regard.formats import count, duration, rate
from regard.storage import size

ALIKE = 0.05  # powers of growth that differ by less are called the same
RISE = 1.02  # how much a loss must rise after the length trained on to be worth a word
SEEN = 0.5  # BLEU: smaller differences between buckets are not spoken of
FALLEN = 0.05  # of a share, likewise
UNEVEN = 1.2  # how many times the parameters of another are worth a word
BOTTLENECK = ("rnn", "rnn+attention")


def summary(comparison: Comparison) -> list[str]:
    """One sentence or two for each thing that was measured."""
    parts: Sequence[Callable[[Comparison], Iterator[str]]] = (
        _quality,
        _unknown,
        _sizes,
        _training,
        _writing,
        _context,
        _lengths,
        _bottleneck,
        _growth,
        _state,
        _failures,
    )
    return [sentence for part in parts for sentence in part(comparison)]


def named(results: Sequence[Result]) -> str:
    """a, b and c."""
    names = [result.name for result in results]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def too_close(comparison: Comparison, one: Result, other: Result) -> bool:
    """True if two models differ by no more than seeds do, or resampled test sets."""
    key = comparison.metric.key
    a, b = one.scores[key], other.scores[key]
    doubt = max(a.deviation, b.deviation)
    if len(a.values) == 1 and one.margin is not None and other.margin is not None:
        doubt = max(one.margin, other.margin)
    return abs(a.mean - b.mean) <= doubt


def _quality(comparison: Comparison) -> Iterator[str]:
    ranked, metric = comparison.ranked, comparison.metric
    if not ranked:
        return

    def shown(one: Result) -> str:
        return one.scores[metric.key].shown(metric.digits)

    best = ranked[0]
    if len(ranked) == 1:
        yield f"{best.name} reaches {shown(best)} {metric.name}; there is no other to compare."
        return
    second, last = ranked[1], ranked[-1]
    rivals = [one for one in ranked[1:] if too_close(comparison, best, one)]
    if rivals:
        listed = ", ".join(f"{one.name} {shown(one)}" for one in (best, *rivals))
        why = "they differ by no more than "
        why += "seeds do" if len(best.seeds) > 1 else "resampled test sets do"
        if len(best.seeds) == 1 and best.margin is None:
            why = "they do not differ"
        yield f"Who is best is too close to call ({metric.name}: {listed}): {why}."
    else:
        gap = abs(best.scores[metric.key].mean - second.scores[metric.key].mean)
        share = 100 * gap / abs(second.scores[metric.key].mean or 1.0)
        words = f" ({share:.1f} %)" if metric.better < 0 else ""  # BLEU has no proportions
        yield (
            f"{best.name} is best with {shown(best)} {metric.name}, {metric.shown(gap)}{words} "
            f"better than {second.name} with {shown(second)}."
        )
    if last not in (best, *rivals, second):
        tied = [one for one in ranked[:-1] if too_close(comparison, one, last)]
        close = f", too close to {named(tied)} to call" if tied else ""
        yield f"{last.name} comes last with {shown(last)}{close}."
    if len(best.seeds) == 1 and best.margin is None:
        yield "With one seed each, nobody knows how much of a difference is chance; try --seeds 3."


def _unknown(comparison: Comparison) -> Iterator[str]:
    lost = [one for one in comparison.good if one not in comparison.ranked]
    if lost:
        yield f"Of {named(lost)} there is no figure to rank by: a loss has grown beyond all bounds."


def _sizes(comparison: Comparison) -> Iterator[str]:
    """Widths come in steps, so small models may be far from the size that was asked for."""
    trained = [one for one in comparison.good if not one.counts]
    if trained:
        least = min(trained, key=lambda one: one.parameters)
        most = max(trained, key=lambda one: one.parameters)
        if most.parameters > UNEVEN * least.parameters:
            yield (
                f"They are not of one size: {least.name} has {count(least.parameters)} parameters, "
                f"{most.name} {count(most.parameters)}."
            )


def _training(comparison: Comparison) -> Iterator[str]:
    trained = [one for one in comparison.good if one.pace is not None and not one.counts]
    paces = {one.name: one.pace.mean for one in trained if one.pace is not None}
    if len(trained) > 1:
        fast = max(trained, key=lambda one: paces[one.name])
        slow = min(trained, key=lambda one: paces[one.name])
        ratio = paces[fast.name] / paces[slow.name]
        if fast is not slow:
            yield (
                f"{fast.name} trains fastest, {rate(paces[fast.name])} tokens a second: "
                f"{ratio:.1f} times {slow.name}, the slowest ({rate(paces[slow.name])})."
            )
    for one in comparison.good:
        if one.counts and one.seconds is not None:
            yield f"{one.name} is not trained but counted, which took {duration(one.seconds.mean)}."


def _writing(comparison: Comparison) -> Iterator[str]:
    there = [one for one in comparison.good if one.decoding]
    if len(there) < 2:
        return
    rows = list(there[0].decoding)
    words = []
    for number in rows:
        fast = max(there, key=lambda one: one.decoding[number])
        alone = "one text at a time" if number == "1" else f"{number} texts side by side"
        words.append(f"{alone} {fast.name} ({rate(fast.decoding[number])} tokens a second)")
    yield f"Who writes fastest: {', '.join(words)}."


def _context(comparison: Comparison) -> Iterator[str]:
    there = [one for one in comparison.good if one.used is not None and one.context is not None]
    if not there:
        return
    reach = {one.name: round(one.used or 0.0) for one in there}
    what = "of the source" if comparison.pairs else "of context"
    most, least = max(reach.values()), min(reach.values())
    far = [one for one in there if reach[one.name] == most]
    near = [one for one in there if reach[one.name] == least]
    there_with = "95 % of what more tokens give is there with"
    if most == least:
        if len(far) > 1:
            yield f"{named(far)} use as much {what}: {there_with} about {most:,}."
        else:
            tokens = "token" if most == 1 else "tokens"
            yield f"{far[0].name} has 95 % of what more give with about {most:,} {tokens} {what}."
        return
    for which, words in ((far, "most"), (near, "least")):
        verb = "uses" if len(which) == 1 else "use"
        yield f"{named(which)} {verb} {words} {what}: {there_with} about {reach[which[0].name]:,}."


def _lengths(comparison: Comparison) -> Iterator[str]:
    labels = comparison.labels
    for one in comparison.good if not comparison.pairs else ():
        line = one.lengths
        if line is None or len(line.y) < 2 or one.counts:
            continue
        before, after = line.y[-2:]
        last = len(line.y) - 1
        here, there = labels[last - 1], labels[last]
        longer = comparison.buckets[last][0] > one.trained_on
        if after > RISE * before and longer:
            where = "in rows longer than it was trained on" if one.trained_on else "far into a row"
            yield (
                f"{one.name} gets worse {where}: {before:.2f} nats at positions {here}, "
                f"{after:.2f} at {there}."
            )
    falls = {
        one.name: one.lengths.y[0] - one.lengths.y[-1]
        for one in comparison.good
        if comparison.pairs and one.lengths is not None and len(one.lengths.y) > 1
    }
    if falls:
        worst = max(falls, key=lambda name: falls[name])
        ends = f"sources of {labels[0]} tokens to those of {labels[-1]}"
        if falls[worst] >= SEEN:
            yield f"{worst} falls most with length: {falls[worst]:.1f} BLEU from {ends}."
        else:
            yield f"No model falls with length from {ends}."


def _bottleneck(comparison: Comparison) -> Iterator[str]:
    """The gain of attention over one vector, on short sources and on long ones."""
    found = {one.name: one.lengths for one in comparison.good if one.name in BOTTLENECK}
    plain, attending = (found.get(name) for name in BOTTLENECK)
    if not comparison.pairs or plain is None or attending is None:
        return
    gaps = [b - a for a, b in zip(plain.y, attending.y, strict=True)]
    # BLEU of long sources is lower for all, and so are differences: shares tell more.
    kept = [a / b if b > 0 else 1.0 for a, b in zip(plain.y, attending.y, strict=True)]
    ends = (
        f"attention adds {gaps[0]:+.1f} BLEU to rnn on the shortest sources and {gaps[-1]:+.1f} on "
        f"the longest; alone it comes to {kept[0]:.0%} and {kept[-1]:.0%} of what it then has"
    )
    if gaps[-1] >= SEEN and kept[-1] <= kept[0] - FALLEN:
        yield f"The one vector is a bottleneck: {ends}."
    else:
        yield f"No bottleneck of the one vector is to be seen: {ends}."


def _growth(comparison: Comparison) -> Iterator[str]:
    powers = {one.name: one.powers.get("flops") for one in comparison.good}
    there = {name: power for name, power in powers.items() if power is not None}
    if len(there) > 1:
        top = max(there.values())
        fast = [one for one in comparison.good if there.get(one.name, -1.0) > top - ALIKE]
        rest = [one for one in comparison.good if one.name in there and one not in fast]
        if not rest:
            yield f"The cost of reading n tokens grows alike for all, about as n^{top:.2f}."
        else:
            others = ", ".join(f"{one.name} n^{there[one.name]:.2f}" for one in rest)
            yield (
                f"The counted cost of reading n tokens grows fastest for {named(fast)}, about as "
                f"n^{top:.2f} at the lengths measured ({others})."
            )


def _state(comparison: Comparison) -> Iterator[str]:
    sizes = {}
    for one in comparison.good:
        known = [n for n in one.cost.get("state_bytes", ()) if n]
        if known and len(known) == len(one.cost["lengths"]):
            sizes[one.name] = known
    if len(sizes) < 2:
        return
    length = next(one.cost["lengths"][-1] for one in comparison.good if one.name in sizes)
    most = max(sizes, key=lambda name: sizes[name][-1])
    least = min(sizes, key=lambda name: sizes[name][-1])
    constant = [name for name in sizes if sizes[name][0] == sizes[name][-1]]
    words = (
        f"After {length:,} tokens {most} keeps {size(sizes[most][-1])} for each text that it "
        f"writes, {least} {size(sizes[least][-1])}"
    )
    if most == least:  # the first of all, which are alike
        words = f"After {length:,} tokens each keeps {size(sizes[most][-1])} for each text"
    rest = f"; what {', '.join(constant)} keep{'s' * (len(constant) == 1)} does not grow"
    yield f"{words}{rest if constant else ''}."


def _failures(comparison: Comparison) -> Iterator[str]:
    for one in comparison.results:
        if one.failed:
            yield f"{one.name} could not be compared: {one.failed}"
