"""Speculative decoding (M21): a small draft proposes tokens, the model judges many in one call.

What is written follows the model's own distribution p exactly, whatever the draft is. A proposal
d, drawn from the draft's q, is accepted with probability min(1, p(d) / q(d)); else a token is drawn
from what p has more than q. So a token t comes up with min(p, q) + max(p - q, 0) = p(t). When all
proposals are accepted, the same call has told what follows them: one token more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from regard.decoding.decode_batch import DecodeBatch, DecodeRow, Token, logprobs, most_probable
from regard.decoding.sampling import SamplingBatch, distribution, draw
from regard.decoding.session import DecoderSession
from regard.decoding.settings import TEXT, Sampling, SpecialTokens
from regard.errors import RegardError
from regard.models.protocol import Memory, SequenceModel


@dataclass
class Speculation:
    """Rows that are written as by `DecodeBatch`, several tokens a step.

    Between steps the model has taken in all of a row but its last token, the draft all but the last
    two, as far as it reaches: so both take back as many, and neither is called for a token more.
    """

    writing: DecodeBatch  # the model's side, and the rows
    draft: DecoderSession
    texts: dict[int, list[int]]  # by the row's number: its prompt and what is written
    reach: int  # positions of the draft; a row that is longer gets no proposals
    ahead: int  # proposals a step
    proposed: int = field(default=0, init=False)
    accepted: int = field(default=0, init=False)

    @classmethod
    @torch.inference_mode()
    def begin(
        cls,
        model: SequenceModel,
        draft: SequenceModel,
        prompts: Sequence[Sequence[int]],
        asked: Sequence[Sampling],
        *,
        context: int,
        signs: SpecialTokens = TEXT,
        device: torch.device | str = "cpu",
        memory: Memory | None = None,
        draft_memory: Memory | None = None,
        copies: Sequence[int] | None = None,
        ahead: int = 4,
        draft_context: int | None = None,
    ) -> "Speculation":
        """Read the prompts with both; see `DecodeBatch.begin`.

        `draft_context` is as many positions as the draft has, if they are fewer than the model's
        `context`.
        """
        if not isinstance(ahead, int) or isinstance(ahead, bool) or ahead < 1:
            raise RegardError(f"a draft proposes at least one token at a time, not {ahead!r:.40}")
        _check_words(_words(model), _words(draft))  # before the draft meets ids it does not know
        writing = DecodeBatch.begin(
            model,
            prompts,
            asked,
            context=context,
            signs=signs,
            device=device,
            memory=memory,
            copies=copies,
        )
        copies = range(len(prompts)) if copies is None else copies
        texts = {row: list(prompts[which]) for row, which in enumerate(copies)}
        reach = min(context, draft_context or context)
        ends = (len(texts[row.number]) + row.most for row in writing.rows)
        longest = max((*map(len, prompts), *ends))
        beginnings = [list(prompt)[:reach] for prompt in prompts]
        drafted = DecoderSession.read(draft, beginnings, min(reach, longest), device, draft_memory)
        _check_words(writing.prefix.logits.shape[-1], drafted.logits.shape[-1])
        drafted.state.rollback([1] * len(prompts))
        drafted.reorder(copies)
        return cls(writing, drafted, texts, reach, ahead)

    @property
    def open(self) -> bool:
        """Whether any row is not at its end."""
        return self.writing.open

    @property
    def acceptance(self) -> float | None:
        """The share of the proposals that were accepted; None if there were none."""
        return self.accepted / self.proposed if self.proposed else None

    def stop(self, number: int) -> None:
        """Row `number` has written enough; what a step has brought behind that does not count."""
        self.writing.stop(number)

    @torch.inference_mode()
    def step(self) -> list[Token]:
        """At least one more token for each open row; those of a row come in their order."""
        self._leave()
        if not self.writing.rows:
            return []
        proposals, chances = self._propose()
        logits = self._read(proposals)  # (rows, proposals + 1, vocabulary)
        self.writing.fresh = False
        return self._judge(logits, proposals, chances)

    def _leave(self) -> None:
        """Rows that have ended give their place away, on both sides."""
        ended = [index for index, row in enumerate(self.writing.rows) if row.ended]
        if len(ended) == len(self.writing.rows):
            self.draft.state.free()
        elif ended:
            self.draft.release(ended)
        self.writing.leave()

    def _propose(self) -> tuple[list[list[int]], list[Tensor]]:
        """Proposals for each row, and for each place among them what the draft drew them from.

        That is (rows, vocabulary), 0 for rows without a proposal there; not for plain rows.
        """
        rows, standing = self.writing.rows, self.writing.standing
        standing = None if standing is None else standing.clone()
        wanted = [self._wanted(row) for row in rows]
        unread = [
            self._unread(row) if count else [] for row, count in zip(rows, wanted, strict=True)
        ]
        proposals: list[list[int]] = [[] for _ in rows]
        chances: list[Tensor] = []
        taken = [0] * len(rows)
        while going := [i for i, count in enumerate(wanted) if len(proposals[i]) < count]:
            # Each call reads the burst from its beginning: a state need not be able to forget more
            # than its last call. It costs little (regard-4, one core: 6.8 ms for one token, 8.5 for
            # five).
            self.draft.state.rollback(taken)
            read = [[*unread[i], *proposals[i][: wanted[i] - 1]] for i in range(len(rows))]
            taken = [len(row) for row in read]
            logits = _some(self.draft.take(read, last=True)[:, 0], going)  # (going, vocabulary)
            columns = self._columns(going)
            logits = _guessing(logits, columns)
            if self._plain:
                drawn = most_probable(logits, columns)
            else:
                q = distribution(logits, columns, _some(standing, going))
                drawn = draw(q, [_roll(rows[i]) for i in going])
                spread = q.new_zeros(len(rows), q.shape[-1])
                spread[torch.tensor(going, device=q.device)] = q
                chances.append(spread)
            for i, token in zip(going, drawn, strict=True):
                proposals[i].append(token)
                if token in self.writing.signs.ends:  # nothing can follow
                    wanted[i] = len(proposals[i])
                if standing is not None:
                    standing[i, token] = True
        return proposals, chances

    def _wanted(self, row: DecodeRow) -> int:
        """How many proposals the row has a use for: one token comes behind them anyway."""
        left = row.most - row.written
        unread = self.reach - len(self.texts[row.number])
        return max(min(self.ahead, left - 1, unread + 1), 0)

    def _unread(self, row: DecodeRow) -> list[int]:
        """What the draft has not taken in yet."""
        return self.texts[row.number][-1 if self.writing.fresh else -2 :]

    def _read(self, proposals: Sequence[Sequence[int]]) -> Tensor:
        """What the model thinks of every place: logits (rows, most proposals + 1, vocabulary)."""
        prefix = self.writing.prefix
        if not self.writing.fresh:
            rows = self.writing.rows
            return prefix.take([[r.last, *p] for r, p in zip(rows, proposals, strict=True)])
        first = prefix.logits[:, None]
        return torch.cat((first, prefix.take(proposals)), 1) if any(proposals) else first

    def _judge(
        self, logits: Tensor, proposals: Sequence[Sequence[int]], chances: Sequence[Tensor]
    ) -> list[Token]:
        """Place by place, the rows whose proposals were all accepted so far; the rest is undone."""
        rows, written = self.writing.rows, []
        accepted = [0] * len(rows)
        going = list(range(len(rows)))
        for place in range(logits.shape[1]):
            here = _some(logits[:, place], going)  # (going, vocabulary)
            proposed = [proposals[i][place] if place < len(proposals[i]) else None for i in going]
            chosen = self._choose(here, going, proposed, chances[place : place + 1])
            noted = logprobs(here, chosen, [rows[i].asked.logprobs for i in going])
            for i, token, note in zip(going, chosen, noted, strict=True):
                written.append(self.writing.took(i, rows[i], token, *note))
                self.texts[rows[i].number].append(token)
            pairs = zip(going, chosen, proposed, strict=True)
            going = [i for i, token, proposal in pairs if token == proposal]
            for i in going:
                accepted[i] += 1
            going = [i for i in going if not rows[i].ended]
            if not going:
                break
        refused = [len(p) - count for p, count in zip(proposals, accepted, strict=True)]
        self.writing.prefix.state.rollback(refused)
        self.draft.state.rollback(refused)
        self.proposed += sum(map(len, proposals))
        self.accepted += sum(accepted)
        return written

    def _choose(
        self,
        logits: Tensor,
        going: Sequence[int],
        proposed: Sequence[int | None],
        chances: Sequence[Tensor],
    ) -> list[int]:
        """A token for each row that goes on, of logits (going, vocabulary): the proposal or not."""
        if self._plain:
            return most_probable(logits, self._columns(going))
        rows = [self.writing.rows[i] for i in going]
        p = distribution(logits, self._columns(going), _some(self.writing.standing, going))
        q = _some(chances[0], going) if chances else torch.zeros_like(p)
        shares = acceptances(p, q, [proposal or 0 for proposal in proposed])
        chosen = [
            proposal if proposal is not None and _roll(row) < share else None
            for row, proposal, share in zip(rows, proposed, shares, strict=True)
        ]
        left = [j for j, token in enumerate(chosen) if token is None]
        if left:
            rest = remainder(_some(p, left), _some(q, left))
            for j, token in zip(left, draw(rest, [_roll(rows[j]) for j in left]), strict=True):
                chosen[j] = token
        return [token for token in chosen if token is not None]

    @property
    def _plain(self) -> bool:
        """Whether nothing has to be weighed or drawn."""
        return all(row.asked.plain for row in self.writing.rows)

    def _columns(self, going: Sequence[int]) -> SamplingBatch:
        columns = self.writing.columns
        return columns if len(going) == len(self.writing.rows) else columns.kept(going)


def _guessing(logits: Tensor, columns: SamplingBatch) -> Tensor:
    """A draft's logits (rows, vocabulary), all alike where it has no token to propose.

    The model, which judges any proposal, may well know one.
    """
    best = logits.masked_fill(columns.forbidden, -torch.inf).amax(-1, keepdim=True)
    return logits.masked_fill(best == -torch.inf, 0.0)


def acceptances(p: Tensor, q: Tensor, proposed: Sequence[int]) -> list[float]:
    """The probability with which each row's proposal is accepted; p, q (rows, vocabulary)."""
    index = torch.tensor(proposed, device=p.device)[:, None]
    model, draft = p.gather(-1, index), q.gather(-1, index)  # (rows, 1)
    return torch.where(draft > 0, model / draft, 0.0).clamp(max=1.0)[:, 0].tolist()


def remainder(p: Tensor, q: Tensor) -> Tensor:
    """What is drawn from when a proposal was refused, or there was none (q = 0); not normalised."""
    more = (p - q).clamp(min=0)  # (rows, vocabulary)
    # Where p and q differ by rounding alone a refusal can leave nothing over.
    return torch.where(more.sum(-1, keepdim=True) > 0, more, p)


def _roll(row: DecodeRow) -> float:
    """The row's next random number; at temperature 0 there is one token, whatever the number."""
    return row.rng.random() if row.asked.temperature else 0.0


Held = TypeVar("Held", Tensor, Tensor | None)


def _some(held: Held, rows: Sequence[int]) -> Held:
    """The given rows, in their order."""
    if held is None or len(rows) == len(held):
        return held
    return held[torch.tensor(rows, device=held.device)]


def _words(model: SequenceModel) -> int | None:
    """The size of the vocabulary, if it can be had without a call."""
    return getattr(getattr(model, "config", None), "vocabulary", None)


def _check_words(model: int | None, draft: int | None) -> None:
    if model is not None and draft is not None and model != draft:
        raise RegardError(
            f"the draft knows {draft:,} tokens, the model {model:,}; they must share a vocabulary"
        )
