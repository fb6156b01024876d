"""What `regard.load(folder)` writes, against `transformers` on the same folder.

Its config.json gives meanings to other ids than a run of ours has.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import transformers as hf
from torch import nn

import regard
from regard.decoding.settings import Beam
from regard.loading import Model
from regard.text.specials import BOS, EOS, PAD

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

VOCABULARY, LIMIT = 31, 12
FIRST, START, END, OTHER_END, FILL = 7, 13, 9, 17, 11
MEANINGS = {"bos_token_id": FIRST, "eos_token_id": END, "pad_token_id": FILL}
# Tied to random embeddings, a model repeats its last token for ever.
SIZES = {"vocab_size": VOCABULARY, "tie_word_embeddings": False}
TEXTS = [[20, 5, 6], [2], [14, 1, 29, 8, 0, 3]]  # what means something to us is a word here


# What a sublayer adds to a vector is small, so that the tokens before make a difference.
SPREADS = {"shared": 3.0, "out_proj": 0.04, "fc2": 0.04}


@torch.no_grad()
def drawn(model: nn.Module, seed: int) -> nn.Module:
    """Every weight anew and wide, with a liking for ends and a greater one for the padding."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.requires_grad or name == "final_logits_bias":
            noise = torch.randn(tensor.shape, generator=generator)
            if tensor.dim() == 1:
                tensor.copy_(0.05 * noise + name.endswith(".weight"))  # only norms have such
            else:
                tensor.copy_(next((s for part, s in SPREADS.items() if part in name), 0.35) * noise)
    for token, liking in ((END, 2.0), (OTHER_END, 1.5), (FILL, 4.0)):
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias[0, token] += liking
        else:  # no bias there: what the last norm adds to every vector is turned towards the token
            steady = model.transformer.ln_f.bias
            model.lm_head.weight[token] += liking * steady / steady.square().sum()
    return model.eval()


def gpt2(**changes: object) -> nn.Module:
    sizes = {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**(SIZES | sizes | MEANINGS | changes)))


def marian(**changes: object) -> nn.Module:
    sizes = {
        "max_position_embeddings": 64,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
    }
    starts = {"decoder_start_token_id": START, "forced_eos_token_id": None}
    model = hf.MarianMTModel(hf.MarianConfig(**(SIZES | sizes | MEANINGS | starts | changes)))
    for stack in (model.model.encoder, model.model.decoder):
        stack.embed_tokens.weight = model.model.shared.weight
    return model


CASES = {
    "gpt2": lambda: drawn(gpt2(), 34),
    "gpt2, two ends": lambda: drawn(gpt2(eos_token_id=[END, OTHER_END]), 24),
    "marian": lambda: drawn(marian(), 35),
    "marian, begun by its padding": lambda: drawn(marian(decoder_start_token_id=FILL), 33),
}


@dataclass(frozen=True)
class Pair:
    """A folder as both read it."""

    theirs: nn.Module
    ours: Model

    @property
    def reads(self) -> bool:
        return self.ours.config.kind == "encoder-decoder"

    @property
    def given(self) -> list[list[int]]:
        """Sources without their ends, or prompts, of which one is empty."""
        return TEXTS if self.reads else [[], *TEXTS]

    def they_write(
        self, given: list[int], beams: int, padding: bool = False
    ) -> list[tuple[list[int], float | None]]:
        """The best texts of one prompt or source, with what ends them, and their scores."""
        tokens = [*given, END] if self.reads else given
        inputs = {"inputs": torch.tensor([tokens])} if tokens else {}
        found = self.theirs.generate(
            **inputs,
            max_new_tokens=LIMIT,
            do_sample=False,
            num_beams=beams,
            num_return_sequences=beams,
            early_stopping=False,
            bad_words_ids=None if padding else [[FILL]],
            output_scores=True,
            return_dict_in_generate=True,
        )
        begun = 1 if self.reads else max(1, len(given))
        rows = found.sequences[:, begun:].tolist()
        scores = found.get("sequences_scores")
        return list(
            zip(map(self.text, rows), [None] if scores is None else scores.tolist(), strict=True)
        )

    def text(self, row: list[int]) -> list[int]:
        """Without the padding behind the first end."""
        ends = [place for place, token in enumerate(row) if token in self.ours.speaker.signs.ends]
        return row[: ends[0] + 1] if ends else row


@pytest.fixture(scope="module", params=list(CASES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder: Path = tmp_path_factory.mktemp("folder")
    made = CASES[request.param]()
    made.save_pretrained(folder)
    return Pair(made, regard.load(folder))


def test_greedy_texts_are_theirs(pair):
    wanted = [pair.they_write(given, 1)[0][0] for given in pair.given]
    found = pair.ours.generate(pair.given, max_tokens=LIMIT, temperature=0)
    assert [[token.id for token in one.tokens] for one in found] == wanted
    assert len({*map(tuple, wanted)}) == len(wanted)  # the prompt or source matters
    ends = [one.end for one in found]
    assert {"end"} <= {*ends} <= {"end", "limit"}


def test_the_beams_texts_and_scores_are_theirs(pair):
    wanted = [one for given in pair.given for one in pair.they_write(given, 4)]
    beam = Beam(4, n_best=4)
    if pair.reads:
        answers = pair.ours.translations(pair.given, beam, max_tokens=LIMIT)
        found = [one for answer in answers for one in answer]
    else:
        found = pair.ours.generate(pair.given, max_tokens=LIMIT, beam=beam)
    ends = pair.ours.speaker.signs.ends
    assert [one.ids for one in found] == [
        [token for token in ids if token not in ends] for ids, _ in wanted
    ]
    assert [one.score for one in found] == pytest.approx([score for _, score in wanted], abs=1e-4)
    assert len({len(ids) for ids, _ in wanted}) > 2


def test_what_each_id_means_makes_a_difference(pair):
    """Else agreement would say nothing of it."""
    allowed = [pair.they_write(given, 1)[0][0] for given in pair.given]
    padded = [pair.they_write(given, 1, padding=True)[0][0] for given in pair.given]
    assert any(FILL in ids for ids in padded)
    assert {PAD, BOS, EOS} & {token for ids in allowed for token in ids}  # words like others
    begin, other = ("bos_token_id", END)
    if pair.reads:
        begin, other = ("decoder_start_token_id", FIRST)
    begun = replace(pair.ours, extra={**pair.ours.extra, begin: other})
    found = begun.generate(pair.given, max_tokens=LIMIT, temperature=0)
    assert [[token.id for token in one.tokens] for one in found] != allowed
