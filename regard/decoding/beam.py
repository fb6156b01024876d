"""Writing the best target for a source: beam search over many rows at once (M21).

One beam is greedy search. A hypothesis ends with `</s>` and is worth its log-probability over its
length to the power `penalty`; a source is done when its best unfinished hypothesis, as long as it
is now, is worth no more than the worst of its finished ones, of which there are as many as beams.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.errors import RegardError
from regard.models.attention import any_shape
from regard.models.transformer import Transformer
from regard.text.specials import BOS, EOS, MASK, PAD

NEVER = (PAD, BOS, MASK)  # a target holds none of these


@dataclass
class Search:
    """What was found for one source: ended hypotheses, best first, at most as many as beams."""

    beams: int
    limit: int
    found: list[tuple[float, list[int]]] = field(default_factory=list)
    done: bool = False

    def take(self, worth: Sequence[float], written: Sequence[list[int]]) -> None:
        """Look at the beams, best first, of which the last tokens are new."""
        best_open = -torch.inf
        for value, ids in zip(worth, written, strict=True):
            if ids[-1] != EOS:
                best_open = max(best_open, value)
            elif value > -torch.inf:
                self.found.append((value, ids[:-1]))
        self.found.sort(key=lambda item: -item[0])
        del self.found[self.beams :]
        settled = len(self.found) == self.beams and self.found[-1][0] >= best_open
        self.done = settled or best_open == -torch.inf or len(written[0]) == self.limit
        if self.done and not self.found:  # nothing ended in time: the best as far as it got
            self.found.append((worth[0], written[0]))


@torch.inference_mode()
@any_shape()
def translate(
    module: Transformer,
    source: Tensor,
    lengths: Tensor | Sequence[int],
    *,
    beams: int = 1,
    limit: int = 0,
    penalty: float = 1.0,
) -> list[list[int]]:
    """The target ids of each source row, without `<s>` and `</s>`.

    source (rows, positions), padded on the right, and its `lengths` (rows,). `limit` 0 allows
    1.5 times the source and ten tokens more; `</s>` counts, and the context is never exceeded.
    """
    if beams < 1 or limit < 0:
        raise RegardError(f"a search needs beams and a limit, not {beams} beams and limit {limit}")
    rows, device = len(source), source.device
    if not rows:
        return []
    read = torch.as_tensor(lengths).tolist()
    limits = [min(limit or int(1.5 * size) + 10, module.config.context) for size in read]
    searches = [Search(beams, most) for most in limits]
    memory = module.encode(source, lengths)
    state = module.start(rows, max(limits))
    logits = module(torch.full((rows, 1), BOS, device=device), memory, state)[:, -1]
    scores, tokens = _first(_allowed(logits), beams)  # (rows, beams)
    state.reorder([row for row in range(rows) for _ in range(beams)])
    written = tokens.reshape(-1, 1)  # (rows · beams, tokens so far)
    while True:
        scores = _judged(searches, written, scores, penalty)
        if all(search.done for search in searches):
            return [search.found[0][1] for search in searches]
        logits = module(written[:, -1:], state=state)[:, -1]  # (rows · beams, vocabulary)
        following = scores[..., None] + _allowed(logits).view(rows, beams, -1)
        scores, flat = following.flatten(1).topk(beams, dim=-1)
        vocabulary = logits.shape[-1]
        origin = (flat // vocabulary + torch.arange(rows, device=device)[:, None] * beams).flatten()
        state.reorder(origin.tolist())
        written = torch.cat((written[origin], flat.view(-1, 1) % vocabulary), dim=1)


def _allowed(logits: Tensor) -> Tensor:
    """Log-probabilities (..., vocabulary) with what a target never holds ruled out."""
    logits = logits.float()
    logits[..., list(NEVER)] = -torch.inf
    return logits.log_softmax(-1)


def _first(following: Tensor, beams: int) -> tuple[Tensor, Tensor]:
    """The best tokens to begin with, and their scores; beams beyond the vocabulary are dead."""
    scores, tokens = following.topk(min(beams, following.shape[-1]), dim=-1)
    missing = 0, beams - scores.shape[1]
    return F.pad(scores, missing, value=-torch.inf), F.pad(tokens, missing, value=EOS)


def _judged(searches: list[Search], written: Tensor, scores: Tensor, penalty: float) -> Tensor:
    """Put away what ended; scores (rows, beams) that leave it no chance to go on."""
    ids, beams = written.tolist(), scores.shape[1]
    worth = (scores / written.shape[1] ** penalty).tolist()
    for row, search in enumerate(searches):
        if not search.done:
            search.take(worth[row], ids[row * beams : (row + 1) * beams])
    return scores.masked_fill(written[:, -1].view_as(scores) == EOS, -torch.inf)
