"""Word vectors on a GPU: as on the CPU but for rounding, and the same each time."""

import numpy as np
import pytest
import torch

from regard.families.word_vectors.steps import VectorSteps
from regard.models.word_vectors.model import Word2VecConfig, WordVectors
from regard.text.specials import BOS, EOS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
WORDS = 400


class Text:
    def __init__(self, ids):
        self.ids = ids

    def __len__(self):
        return len(self.ids)

    def read(self, start, stop):
        return self.ids[start:stop]


def learned(device, method, loss):
    rng = np.random.default_rng(0)
    lines = [[BOS, *(5 + rng.zipf(1.3, 20) % (WORDS - 5)), EOS] for _ in range(500)]
    ids = np.concatenate(lines)
    config = Word2VecConfig(WORDS, width=32, method=method, loss=loss, subsample=1e-2)
    torch.manual_seed(0)
    vectors = WordVectors(config).to(device)
    counts = np.bincount(ids, minlength=WORDS)
    steps = VectorSteps(config, Text(ids), counts, epochs=1, piece=4096, device=device)
    losses = [steps.advance(vectors, step).loss for step in range(len(steps))]
    return losses, vectors.input.detach().cpu(), vectors.output.detach().cpu()


@pytest.mark.parametrize("method", ["skip-gram", "cbow"])
@pytest.mark.parametrize("loss", ["negative", "hierarchical"])
def test_a_gpu_learns_what_a_cpu_does_and_the_same_each_time(method, loss):
    here, there, again = (learned(device, method, loss) for device in ("cpu", "cuda", "cuda"))
    assert there[0] == again[0]
    assert all(torch.equal(a, b) for a, b in zip(there[1:], again[1:], strict=True))
    assert there[0] == pytest.approx(here[0], rel=1e-3)
    for mine, theirs in zip(here[1:], there[1:], strict=True):
        assert (mine - theirs).abs().max() < 1e-3
