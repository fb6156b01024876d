"""What a step of training word vectors costs."""

import numpy as np
import torch

from regard.costs.jobs import Counted
from regard.costs.trace.fake_device import Kind
from regard.costs.trace.tracer import tracing
from regard.families.word_vectors.groups import Halves, Layers, learn
from regard.families.word_vectors.steps import VectorSteps
from regard.models.construction import build
from regard.models.counting.grams import Row
from regard.models.word_vectors.config import Word2VecConfig
from regard.models.word_vectors.model import WordVectors
from regard.text.specials import SPECIALS


def vectors(config: Word2VecConfig, tokens: int, kind: Kind = "cpu") -> Counted:
    """One step of word2vec over so many tokens, in which all words are equally frequent."""
    draws = np.random.default_rng(0)
    text = draws.integers(len(SPECIALS), config.vocabulary, tokens)
    counts = np.bincount(text, minlength=config.vocabulary)
    steps = VectorSteps(config, Row(text), counts, epochs=1, device="meta", piece=tokens)
    module: WordVectors = build(config, "meta")
    layers = Layers(module.input.detach(), module.output.detach())
    columns = Halves(config.width, 1 if kind == "cuda" else 2)
    with torch.no_grad(), tracing(module, kind) as tracer:
        for group in steps.prepared(0).groups:
            tracer.phase = "forward"
            learn(layers, group, steps.loss, steps.rate(0), columns)
        memory = dict(tracer.memory.at_peak)
        alive = frozenset(tracer.memory.alive)
    return Counted(
        [r for r in tracer.records if r.phase == "forward"],
        memory,
        alive,
        parameters=sum(weight.numel() for weight in module.parameters()),
        weights=sum(weight.nbytes for weight in module.parameters()),
    )
