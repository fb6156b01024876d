"""Beam search (M21): the few best beginnings of each row, taken further together.

The rules, which are those of the field:
- At each step all tokens behind all beams of a row are ranked by their log-probability so far. An
  end among the first `beams` of them is a finished hypothesis; the best `beams` that do not end go
  on. So a finished hypothesis leaves its slot to an open one.
- A hypothesis of n tokens, its end included, a given prompt not, is worth its
  log-probability / n ** length_penalty, plus coverage_penalty · Σ log min(attention, 1) over the
  source, where attention is what a position got in all steps together (Wu 2016). The best `beams`
  finished ones are kept.
- A row is done when it has that many and its best open hypothesis, as it stands and before it pays
  for coverage, is worth no more than the worst of them; or when the limit is reached, where what is
  open counts as finished.
- A hypothesis behind which no token has a probability, not even an end, has none as a whole
  answer: it gives its slot away. A row where all are such, and nothing has been found, is refused.
- Banned tokens are ruled out behind the softmax: a score is what the model says.
- Of equals the one comes first whose beginning was ranked higher, and of the same beginning the
  first token of the vocabulary; of equal finished hypotheses the one that was found first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Literal

import torch
from torch import Tensor

from regard.decoding.attention_weights import attended
from regard.decoding.parallel_batches import GivenUp
from regard.decoding.sampling import NOTHING, check_numbers, log_probabilities
from regard.decoding.session import DecoderSession
from regard.decoding.settings import TARGET, Beam, SpecialTokens
from regard.decoding.stable_topk import stable_topk
from regard.errors import RegardError
from regard.models.masks import QueryKeyRange, fitting
from regard.models.protocol import Memory, SequenceModel, closed_up

Fate = Literal["kept", "ended", "dropped"]


@dataclass(frozen=True)
class Candidate:
    """One way to go on at one step of one row, as the record of a search tells it."""

    parent: int  # which candidate that was kept at the step before; -1: the prompt
    token: int
    logprob: float  # of all tokens up to this one
    worth: float  # with the penalties
    coverage: float  # the part of the worth that the coverage penalty takes
    fate: Fate


@dataclass(frozen=True)
class Hypothesis:
    """A whole answer."""

    ids: list[int]  # without the end
    logprob: float  # of all tokens, the end included
    worth: float  # with the penalties: what hypotheses are ranked by
    end: int | None  # the token that ended it; else the limit came first
    attention: Tensor | None = None  # (tokens and the end, positions of the longest source)

    @property
    def ended(self) -> bool:
        return self.end is not None


@dataclass(frozen=True)
class SearchResult:
    """What a search brought for one row."""

    hypotheses: list[Hypothesis]  # best first, at most n_best
    forced: Tensor | None = None  # (tokens of the prompt but its first, source positions)
    tree: list[list[Candidate]] | None = None  # the candidates of each step, best first

    def looked(self, one: Hypothesis) -> Tensor | None:
        """How forced tokens looked at the source, and then those of a hypothesis; on the CPU."""
        if one.attention is None:
            return None
        whole = one.attention if self.forced is None else torch.cat((self.forced, one.attention))
        return whole.cpu()


@dataclass(frozen=True)
class Node:
    """A token in the tree of hypotheses."""

    token: int
    logprob: float
    parent: "Node | None"
    look: tuple[int, int]  # step and row of the forward call that gave it
    index: int = -1  # of the candidate that it is, for the record

    def path(self) -> "list[Node]":
        node: Node | None = self
        found = []
        while node is not None:
            found.append(node)
            node = node.parent
        return found[::-1]


@dataclass
class BeamRow:
    """One row's search: beams that are open, and what has been found."""

    number: int
    limit: int
    beams: list[Node | None] = field(default_factory=lambda: [None])  # by slot; None: the prompt
    scores: list[float] = field(default_factory=lambda: [0.0])  # by slot; -inf: an empty one
    ranking: list[int] = field(default_factory=lambda: [0])  # the slots, the best beam's first
    found: list[tuple[float, Node]] = field(default_factory=list)  # best first
    origins: list[int] = field(default_factory=list)  # which slot each slot goes on from
    done: bool = False
    tree: list[list[Candidate]] = field(default_factory=list)


@torch.inference_mode()
def search(
    model: SequenceModel,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    beam: Beam,
    *,
    signs: SpecialTokens = TARGET,
    device: torch.device | str = "cpu",
    memory: Memory | None = None,
    over: Event | None = None,
) -> list[SearchResult]:
    """The best continuations of each prompt (at least one token) by at most `limits` tokens.

    Once `over` is set nobody wants them any more, and the next step raises `GivenUp`.
    """
    if not len(prompts) == len(limits):
        raise RegardError(f"{len(prompts)} prompts need as many limits, not {len(limits)}")
    if not prompts:
        return []
    if min(limits) < 1:
        raise RegardError(f"a search needs room for a token, not a limit of {min(limits)}")
    room = max(len(prompt) + most for prompt, most in zip(prompts, limits, strict=True))
    return_attention = beam.attention or beam.coverage_penalty > 0
    prefix = DecoderSession.read(
        model, prompts, room, device, memory, return_attention=return_attention
    )
    found = _Search(prefix, beam, signs, limits)
    if return_attention:
        found.look_back([len(prompt) for prompt in prompts], memory)
    return found.run(over)


class _Search:
    """Many rows, each with as many slots, in one state."""

    def __init__(
        self, prefix: DecoderSession, beam: Beam, signs: SpecialTokens, limits: Sequence[int]
    ) -> None:
        self.prefix, self.beam, self.signs = prefix, beam, signs
        self.rows = [BeamRow(number, limit) for number, limit in enumerate(limits)]
        self.open = list(self.rows)
        self.looks: list[Tensor] = []  # by step: (rows of the state, source positions)
        self.forced: list[Tensor] = []  # by row: (tokens of the prompt but its first, positions)
        self.covered: Tensor | None = None  # (rows of the state, source positions), summed
        self.real: Tensor | None = None  # (rows, source positions): True for what is no padding
        self.length = 0  # tokens of every open hypothesis
        vocabulary = prefix.logits.shape[-1]
        if max(beam.banned, default=0) >= vocabulary:
            raise RegardError(
                f"banned token {max(beam.banned)} does not exist: there are {vocabulary:,} tokens"
            )
        banned = sorted({*(token for token in signs.never if token < vocabulary), *beam.banned})
        if len(banned) == vocabulary:
            raise RegardError("every token is banned, so nothing can be written")
        self.banned = torch.tensor(banned, dtype=torch.long, device=prefix.device)

    def look_back(self, lengths: Sequence[int], memory: Memory | None) -> None:
        """Keep how forced tokens looked at the source, and which of its positions are real."""
        seen = self.prefix.state.attention
        assert seen is not None
        assert memory is not None
        looks = attended(seen)  # (rows, longest, positions)
        self.forced = [look[: length - 1] for look, length in zip(looks, lengths, strict=True)]
        self.covered = torch.stack([look.sum(0) for look in self.forced])
        span = QueryKeyRange.of(len(lengths), 1, looks.shape[-1], looks.device)
        table = torch.ones(1, 1, span.keys, dtype=torch.bool, device=looks.device)
        table = table if memory.mask is None else fitting(memory.mask, span)
        self.real = table[:, 0].expand(len(lengths), -1)

    def run(self, over: Event | None) -> list[SearchResult]:
        while self.open:
            if over is not None and over.is_set():
                raise GivenUp
            self.length += 1
            self._look()
            self._grow()
            self._go_on()
        self.prefix.state.free()
        return [
            SearchResult(self._hypotheses(row), self._forced(row), row.tree or None)
            for row in self.rows
        ]

    def _forced(self, row: BeamRow) -> Tensor | None:
        return self.forced[row.number] if self.beam.attention else None

    def _look(self) -> None:
        """Keep how the newest tokens looked at the source: the mean of the heads."""
        newest = self.prefix.look  # (rows, layers, heads, source positions)
        if newest is None:
            return
        look = attended(newest[..., None, :])[:, 0]  # (rows, source positions)
        self.looks.append(look)
        assert self.covered is not None
        self.covered = self.covered + look

    def _grow(self) -> None:
        """Rank what may follow the beams of every open row, and choose."""
        scores, parents, tokens = self._ranked()
        coverage = self._coverage()
        for index, row in enumerate(self.open):
            slots = len(row.beams)
            lost = coverage[index * slots : (index + 1) * slots] if coverage else [0.0] * slots
            self._choose(index, row, scores[index], parents[index], tokens[index], lost)

    def _ranked(self) -> tuple[list[list[float]], list[list[int]], list[list[int]]]:
        """Log-probability so far, slot and token of the best candidates of each open row."""
        logits = self.prefix.logits  # (rows · slots, vocabulary)
        rows, slots = len(self.open), len(self.open[0].beams)
        # Each beam may end in every way there is, and as many are still to go on.
        wanted = (1 + max(1, len(self.signs.ends))) * self.beam.beams
        wanted = min(wanted, slots * logits.shape[-1])
        each = min(wanted, logits.shape[-1])
        logprobs = log_probabilities(logits)
        if len(self.banned):
            logprobs[:, self.banned] = -torch.inf
        values, indices = stable_topk(logprobs, each)  # (rows · slots, each)
        check_numbers(values)
        scores = [row.scores for row in self.open]
        so_far = torch.tensor(scores, dtype=logits.dtype, device=logits.device)
        total = values.view(rows, slots, each) + so_far[..., None]
        order = torch.tensor([row.ranking for row in self.open], device=logits.device)
        by_rank = order[..., None].expand(-1, -1, each)  # (rows, slots, each)
        best, places = stable_topk(total.gather(1, by_rank).flatten(1), wanted)  # (rows, wanted)
        tokens = indices.view(rows, slots, each).gather(1, by_rank).flatten(1).gather(1, places)
        return best.tolist(), order.gather(1, places // each).tolist(), tokens.tolist()

    def _coverage(self) -> list[float] | None:
        """What the coverage penalty takes from a hypothesis that ends now, by row of the state."""
        if not self.beam.coverage_penalty or self.covered is None or self.real is None:
            return None
        each = len(self.covered) // len(self.open)
        real = self.real[[row.number for row in self.open for _ in range(each)]]
        # What nothing ever looked at must not weigh without end.
        logs = self.covered.clamp(min=1e-9, max=1.0).log().masked_fill(~real, 0.0)
        return (self.beam.coverage_penalty * logs.sum(-1)).tolist()

    def _choose(
        self,
        index: int,
        row: BeamRow,
        scores: list[float],
        parents: list[int],
        tokens: list[int],
        lost: list[float],
    ) -> None:
        """Put away what ends; let the best of the others go on."""
        beams, last = self.beam.beams, self.length == row.limit
        kept: list[tuple[int, Node]] = []
        record: list[Candidate] = []
        slots = len(row.beams)
        for rank, (score, slot, token) in enumerate(zip(scores, parents, tokens, strict=True)):
            if score == -torch.inf:
                break  # the rest has no probability either
            parent = row.beams[slot]
            look = (self.length - 1, index * slots + slot)
            node = Node(token, score, parent, look, len(record))
            worth = score / self.length**self.beam.length_penalty + lost[slot]
            fate: Fate = "dropped"
            if token in self.signs.ends or last:
                if rank < beams:
                    row.found.append((worth, node))
                    fate = "ended"
            elif len(kept) < beams:
                kept.append((slot, node))
                fate = "kept"
            if self.beam.record:
                origin = parent.index if parent is not None else -1
                record.append(Candidate(origin, token, score, worth, lost[slot], fate))
        row.found.sort(key=lambda item: -item[0])
        del row.found[beams:]
        if self.beam.record:
            row.tree.append(record)
        best_open = kept[0][1].logprob if kept else -torch.inf
        best_open /= self.length**self.beam.length_penalty
        if not kept and not row.found:
            raise RegardError(NOTHING)
        settled = len(row.found) == beams and row.found[-1][0] >= best_open
        row.done = settled or not kept
        row.origins, row.beams = _seated(kept, slots, beams)
        row.scores = [-torch.inf if node is None else node.logprob for node in row.beams]
        ranks = {id(node): rank for rank, (_, node) in enumerate(kept)}
        row.ranking = sorted(range(beams), key=lambda slot: ranks.get(id(row.beams[slot]), beams))

    def _go_on(self) -> None:
        """Rows that are done leave; the open beams take in their newest tokens."""
        each = self.prefix.state.rows // len(self.open)  # slots until now
        still = closed_up([not row.done for row in self.open])
        self.open = [self.open[index] for index in still]
        if not still:
            return
        pairs = zip(still, self.open, strict=True)
        order = [index * each + origin for index, row in pairs for origin in row.origins]
        self.prefix.state.reorder(order)
        if self.covered is not None:
            self.covered = self.covered[torch.tensor(order, device=self.covered.device)]
        idle = self.signs.ends[0] if self.signs.ends else 0  # what an empty slot is given
        beams = (node for row in self.open for node in row.beams)
        self.prefix.follow([idle if node is None else node.token for node in beams])

    def _hypotheses(self, row: BeamRow) -> list[Hypothesis]:
        return [self._whole(worth, node) for worth, node in row.found[: self.beam.n_best]]

    def _whole(self, worth: float, last: Node) -> Hypothesis:
        path = last.path()
        ids = [node.token for node in path]
        end = last.token if last.token in self.signs.ends else None
        attention = None
        if self.beam.attention:
            attention = torch.stack([self.looks[step][at] for step, at in (n.look for n in path)])
        ids = ids if end is None else ids[:-1]
        return Hypothesis(ids, last.logprob, worth, end, attention)


def _seated(
    kept: Sequence[tuple[int, Node]], slots: int, beams: int
) -> tuple[list[int], list[Node | None]]:
    """Which slot each slot goes on from, and with what.

    The first child of a beam keeps its slot, where the cache of its prefix lies already; only the
    others have to be copied.
    """
    origins = [min(slot, slots - 1) for slot in range(beams)]
    nodes: list[Node | None] = [None] * beams
    moving = []
    for slot, node in kept:
        if nodes[slot] is None:
            nodes[slot] = node
        else:
            moving.append((slot, node))
    free = [slot for slot, node in enumerate(nodes) if node is None]
    for place, (slot, node) in zip(free, moving, strict=False):
        origins[place], nodes[place] = slot, node
    return origins, nodes
