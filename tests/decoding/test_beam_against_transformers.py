"""Greedy and beam search against `transformers` on the same weights, random and trained."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard.decoding.decode_batch import DecodeBatch
from regard.decoding.search.beam import Hypothesis, search
from regard.decoding.settings import Beam, Sampling, SpecialTokens
from regard.models.construction import build
from regard.models.transformer.model import Transformer
from regard.models.transformer.presets import preset

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

PAD, END, BEGIN = 0, 1, 2
SIGNS = SpecialTokens(begin=BEGIN, ends=(END,), never=(PAD,))
VOCABULARY, CONTEXT = 31, 64


@dataclass(frozen=True)
class Pair:
    """The same weights twice."""

    ours: Transformer
    theirs: nn.Module
    prompts: list[list[int]]
    sources: list[list[int]] | None = None
    answers: list[list[int]] | None = None  # as they were trained

    def memory(self):
        if self.sources is None:
            return None
        tokens, mask = padded(self.sources)
        with torch.no_grad():
            return self.ours.encode(tokens, mask.sum(1))

    def generate(self, limit: int, **settings: object):
        """What `transformers` writes, without the prompts: (rows, new), and their scores."""
        if self.sources is None:
            tokens, mask = padded(self.prompts, left=True)
            inputs = {"input_ids": tokens, "attention_mask": mask}
            begun = tokens.shape[1]
        else:
            tokens, mask = padded(self.sources)
            prompts = torch.tensor(self.prompts)
            inputs = {"input_ids": tokens, "attention_mask": mask, "decoder_input_ids": prompts}
            begun = prompts.shape[1]
        config = hf.GenerationConfig(
            max_new_tokens=limit,
            do_sample=False,
            pad_token_id=PAD,
            eos_token_id=END,
            decoder_start_token_id=BEGIN,
            bad_words_ids=[[PAD]],
            output_scores=True,
            return_dict_in_generate=True,
            **settings,
        )
        self.theirs.generation_config = hf.GenerationConfig()
        found = self.theirs.generate(**inputs, generation_config=config)
        return found.sequences[:, begun:], found.get("sequences_scores")


def padded(rows: list[list[int]], left: bool = False) -> tuple[Tensor, Tensor]:
    """Token ids, and 1 where they are real: each (rows, longest)."""
    longest = max(map(len, rows))
    fill = [[0] * (longest - len(row)) for row in rows]
    tokens = [[*f, *r] if left else [*r, *f] for r, f in zip(rows, fill, strict=True)]
    ones = [[1] * len(row) for row in rows]
    real = [[*f, *r] if left else [*r, *f] for r, f in zip(ones, fill, strict=True)]
    return torch.tensor(tokens), torch.tensor(real)


# --- random models ---------------------------------------------------------------------------


@torch.no_grad()
def drawn(model: nn.Module, seed: int, liking: float) -> nn.Module:
    """Every weight anew and wide; then a liking for the end."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.requires_grad or name == "final_logits_bias":
            scale = tensor.dim() == 1 and name.endswith(".weight")
            noise = torch.randn(tensor.shape, generator=generator)
            tensor.copy_(0.25 * noise + (1.0 if scale else 0.0))
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias[0, END] += liking
    else:  # no bias there: what the last norm adds to every vector is turned towards the end
        steady = model.transformer.ln_f.bias
        model.transformer.wte.weight[END] += liking * steady / steady.square().sum()
    return model.eval()


def gpt2() -> nn.Module:
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=CONTEXT,
            n_embd=32,
            n_layer=2,
            n_head=4,
            bos_token_id=BEGIN,
            eos_token_id=END,
            pad_token_id=PAD,
        )
    )


def marian() -> nn.Module:
    return hf.MarianMTModel(
        hf.MarianConfig(
            vocab_size=VOCABULARY,
            max_position_embeddings=CONTEXT,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            activation_function="swish",
            scale_embedding=True,
            pad_token_id=PAD,
            eos_token_id=END,
            decoder_start_token_id=BEGIN,
            forced_eos_token_id=None,
        )
    )


def ragged(rows: int, seed: int) -> list[list[int]]:
    """Rows of 1 to 9 tokens."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 10, (rows,), generator=generator).tolist()
    return [torch.randint(3, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


def random_gpt2(folder: Path) -> Pair:
    theirs = drawn(gpt2(), 5, liking=2.0)  # with this seed no two candidates are nearly equal
    theirs.save_pretrained(folder)
    prompts = [[BEGIN, *row] for row in ragged(6, 1)]
    return Pair(regard.load(folder).module, theirs, prompts)


def random_marian(folder: Path) -> Pair:
    theirs = drawn(marian(), 7, liking=2.0)
    theirs.save_pretrained(folder)
    sources = [[*row, END] for row in ragged(6, 2)]
    return Pair(regard.load(folder).module, theirs, [[BEGIN]] * 6, sources)


# --- trained ones ----------------------------------------------------------------------------


def trained(name: str, loss: Callable[[Transformer, torch.Generator], Tensor]) -> Transformer:
    """A tiny model that has learnt a task: sure of much, and unsure of some."""
    torch.manual_seed(0)
    sizes = {"vocabulary": VOCABULARY, "context": CONTEXT}
    module = build(replace(preset(name), **sizes, dropout=0.0, attention_dropout=0.0))
    optimizer = torch.optim.AdamW(module.parameters(), lr=4e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(250):
        optimizer.zero_grad()
        loss(module, generator).backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
    return module.eval()


def next_token_loss(logits: Tensor, tokens: Tensor, real: Tensor) -> Tensor:
    wanted = real[:, 1:] == 1
    return F.cross_entropy(logits[wanted], tokens[:, 1:][wanted])


def backwards(generator: torch.Generator, count: int) -> tuple[list[list[int]], list[list[int]]]:
    """Short rows of symbols, and what is to be written for each: the same backwards."""
    lengths = torch.randint(2, 6, (count,), generator=generator).tolist()
    rows = [torch.randint(3, 15, (n,), generator=generator).tolist() for n in lengths]
    return rows, [[*row[::-1], END] for row in rows]


def backwards_loss(module: Transformer, generator: torch.Generator) -> Tensor:
    rows, answers = backwards(generator, 32)
    sources, known = padded(rows)
    tokens, real = padded([[BEGIN, *answer] for answer in answers])
    memory = module.encode(sources, known.sum(1))
    return next_token_loss(module(tokens[:, :-1], memory), tokens, real)


def counting(generator: torch.Generator, count: int) -> tuple[list[list[int]], list[list[int]]]:
    """The beginnings of rows that count up by ones, twos or threes, and how they go on."""
    numbers = torch.randint(0, 9, (count,), generator=generator).tolist()
    rows = [list(range(3 + n // 3, 15, 1 + n % 3)) for n in numbers]
    return [[BEGIN, *row[:2]] for row in rows], [[*row[2:], END] for row in rows]


def counting_loss(module: Transformer, generator: torch.Generator) -> Tensor:
    begun, answers = counting(generator, 32)
    tokens, real = padded([[*a, *b] for a, b in zip(begun, answers, strict=True)])
    return next_token_loss(module(tokens[:, :-1]), tokens, real)


def trained_gpt2(folder: Path) -> Pair:
    regard.save(trained("gpt2-tiny", counting_loss), folder)
    prompts, answers = counting(torch.Generator().manual_seed(9), 5)
    theirs = hf.GPT2LMHeadModel.from_pretrained(folder).eval()
    # With one that is shorter than the others, and as yet undecided.
    return Pair(regard.load(folder).module, theirs, [*prompts, [BEGIN]], answers=answers)


def trained_marian(folder: Path) -> Pair:
    regard.save(trained("marian-tiny", backwards_loss), folder)
    sources, answers = backwards(torch.Generator().manual_seed(9), 6)
    theirs = hf.MarianMTModel.from_pretrained(folder).eval()
    return Pair(regard.load(folder).module, theirs, [[BEGIN]] * 6, sources, answers)


PAIRS = {
    "random gpt2": random_gpt2,
    "random marian": random_marian,
    "trained gpt2": trained_gpt2,
    "trained marian": trained_marian,
}


@pytest.fixture(scope="session", params=list(PAIRS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return PAIRS[request.param](tmp_path_factory.mktemp("weights"))


# --- the tests -------------------------------------------------------------------------------


def whole(one: Hypothesis) -> list[int]:
    return [*one.ids, END] if one.ended else one.ids


def until_end(row: list[int]) -> list[int]:
    """Without the padding behind it."""
    return row[: row.index(END) + 1] if END in row else row


LIMITS = (4, 12)


@pytest.mark.parametrize("limit", LIMITS)
def test_greedy_tokens_are_the_same(pair, limit):
    theirs, _ = pair.generate(limit, num_beams=1)
    wanted = [until_end(row) for row in theirs.tolist()]
    one_beam = search(
        pair.ours, pair.prompts, [limit] * 6, Beam(1), signs=SIGNS, memory=pair.memory()
    )
    assert [whole(found.hypotheses[0]) for found in one_beam] == wanted
    asked = [Sampling(limit=limit, temperature=0)] * 6
    writing = DecodeBatch.begin(
        pair.ours, pair.prompts, asked, context=CONTEXT, signs=SIGNS, memory=pair.memory()
    )
    rows: list[list[int]] = [[] for _ in range(6)]
    while writing.open:
        for token in writing.step():
            rows[token.row].append(token.id)
    assert rows == wanted


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("penalty", [0.6, 1.0, 2.0])
@pytest.mark.parametrize(("beams", "n_best"), [(4, 4), (8, 5)])
def test_beams_and_their_scores_are_the_same(pair, limit, penalty, beams, n_best):
    settings = {"num_beams": beams, "num_return_sequences": n_best, "length_penalty": penalty}
    theirs, scores = pair.generate(limit, early_stopping=False, **settings)
    beam = Beam(beams, penalty, n_best=n_best)
    ours = search(pair.ours, pair.prompts, [limit] * 6, beam, signs=SIGNS, memory=pair.memory())
    found = [one for row in ours for one in row.hypotheses]
    assert [whole(one) for one in found] == [until_end(row) for row in theirs.tolist()]
    assert [one.worth for one in found] == pytest.approx(scores.tolist(), abs=1e-4)


def test_hypotheses_end_at_many_lengths_and_at_the_limit(pair):
    """Else agreement would mean little."""
    theirs, _ = pair.generate(12, num_beams=8, num_return_sequences=5, early_stopping=False)
    rows = [until_end(row) for row in theirs.tolist()]
    assert len({len(row) for row in rows if row[-1] == END}) >= 3
    theirs, _ = pair.generate(4, num_beams=8, num_return_sequences=5, early_stopping=False)
    short = [until_end(row) for row in theirs.tolist()]
    assert {row[-1] == END for row in short} == {True, False}


@pytest.mark.parametrize("pair", ["trained gpt2", "trained marian"], indirect=True)
def test_what_was_trained_has_learnt(pair):
    """So the trained pairs differ in kind from the random ones."""
    theirs, _ = pair.generate(12, num_beams=4, early_stopping=False)
    found = [until_end(row) for row in theirs.tolist()]
    right = sum(one == wanted for one, wanted in zip(found, pair.answers, strict=False))
    assert right >= 4


@pytest.mark.parametrize("pair", ["random marian", "trained marian"], indirect=True)
def test_a_forced_beginning_of_a_target_is_the_same(pair):
    forced = replace(pair, prompts=[[BEGIN, 5 + row, 9] for row in range(6)])
    settings = {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 1.0}
    theirs, scores = forced.generate(7, early_stopping=False, **settings)
    ours = search(
        pair.ours, forced.prompts, [7] * 6, Beam(4, n_best=4), signs=SIGNS, memory=pair.memory()
    )
    found = [one for row in ours for one in row.hypotheses]
    assert [whole(one) for one in found] == [until_end(row) for row in theirs.tolist()]
    assert [one.worth for one in found] == pytest.approx(scores.tolist(), abs=1e-4)


@pytest.mark.parametrize("pair", ["random gpt2", "trained gpt2"], indirect=True)
def test_several_ends_are_the_same(pair):
    ends = (END, 5, 6, 7)
    theirs = pair.theirs.generate(
        **dict(zip(("input_ids", "attention_mask"), padded(pair.prompts, left=True), strict=True)),
        generation_config=hf.GenerationConfig(
            max_new_tokens=8,
            do_sample=False,
            num_beams=5,
            num_return_sequences=5,
            length_penalty=2.0,
            early_stopping=False,
            pad_token_id=PAD,
            eos_token_id=list(ends),
            bad_words_ids=[[PAD]],
            output_scores=True,
            return_dict_in_generate=True,
        ),
    )
    beam, signs = Beam(5, 2.0, n_best=5), replace(SIGNS, ends=ends)
    ours = search(pair.ours, pair.prompts, [8] * 6, beam, signs=signs)
    found = [one for row in ours for one in row.hypotheses]
    rows = theirs.sequences[:, max(map(len, pair.prompts)) :].tolist()
    wanted = [[token for token in row if token not in (*ends, PAD)] for row in rows]
    assert [one.ids for one in found] == wanted
    assert [one.worth for one in found] == pytest.approx(theirs.sequences_scores.tolist(), abs=1e-4)
