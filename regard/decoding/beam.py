"""Writing the best target for a source: beam search over many rows at once (M21).

One beam is greedy search. A hypothesis ends with `</s>` and is worth its log-probability over its
length to the power `penalty`; a source is done when its best unfinished hypothesis can no longer
beat the worst of its finished ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.models.transformer import Transformer
from regard.text.specials import BOS, EOS, MASK, PAD

NEVER = (PAD, BOS, MASK)  # a target holds none of these


@dataclass
class Finished:
    """The ended hypotheses of one source, best first, at most as many as there are beams."""

    beams: int
    found: list[tuple[float, list[int]]] = field(default_factory=list)

    def add(self, worth: float, ids: list[int]) -> None:
        self.found.append((worth, ids))
        self.found.sort(key=lambda item: -item[0])
        del self.found[self.beams :]

    def settled(self, best_open: float) -> bool:
        return len(self.found) == self.beams and self.found[-1][0] >= best_open


@torch.inference_mode()
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
    1.5 times the longest source and ten tokens more, and never more than the context.
    """
    if beams < 1:
        raise RegardError(f"a search needs at least one beam, not {beams}")
    rows, device = len(source), source.device
    most = limit or int(1.5 * source.shape[1]) + 10
    most = min(most, module.config.context)
    memory = module.encode(source, lengths)
    state = module.start(rows, most)
    logits = module(torch.full((rows, 1), BOS, device=device), memory, state)[:, -1]
    scores, tokens = _allowed(logits).topk(beams, dim=-1)  # (rows, beams)
    state.reorder([row for row in range(rows) for _ in range(beams)])
    written = tokens.reshape(-1, 1)  # (rows · beams, tokens so far)
    finished = [Finished(beams) for _ in range(rows)]
    for length in range(1, most + 1):
        # What just ended is put away; its beam goes on with no chance of being chosen.
        ended = written[:, -1].view(rows, beams) == EOS
        _put_away(finished, written, scores, ended, length, penalty)
        scores = scores.masked_fill(ended, -torch.inf)
        best = scores.amax(-1).tolist()
        open_rows = [
            row for row in range(rows) if not finished[row].settled(best[row] / length**penalty)
        ]
        if not open_rows or length == most:
            break
        logits = module(written[:, -1:], state=state)[:, -1]  # (rows · beams, vocabulary)
        following = scores[..., None] + _allowed(logits).view(rows, beams, -1)
        scores, flat = following.flatten(1).topk(beams, dim=-1)
        vocabulary = logits.shape[-1]
        origin = (flat // vocabulary + torch.arange(rows, device=device)[:, None] * beams).flatten()
        state.reorder(origin.tolist())
        written = torch.cat((written[origin], flat.view(-1, 1) % vocabulary), dim=1)
    _put_away(finished, written, scores, torch.ones_like(ended), most, penalty, only_empty=True)
    return [row.found[0][1] for row in finished]


def _allowed(logits: Tensor) -> Tensor:
    """Log-probabilities (..., vocabulary) with what a target never holds ruled out."""
    logits = logits.float()
    logits[..., list(NEVER)] = -torch.inf
    return logits.log_softmax(-1)


def _put_away(
    finished: list[Finished],
    written: Tensor,
    scores: Tensor,
    ended: Tensor,
    length: int,
    penalty: float,
    only_empty: bool = False,
) -> None:
    """Keep the hypotheses marked in `ended` (rows, beams); `only_empty`: for rows with none yet."""
    if not bool(ended.any()):
        return
    worth, ids, beams = (scores / length**penalty).tolist(), written.tolist(), scores.shape[1]
    for row, beam in ended.nonzero().tolist():
        if only_empty and finished[row].found:
            continue
        if worth[row][beam] == -float("inf"):
            continue
        text = ids[row * beams + beam]
        finished[row].add(worth[row][beam], text[:-1] if text[-1] == EOS else text)
