"""Five families against `transformers`: logits, gradients, continuations, folders both ways."""

from copy import deepcopy
from dataclasses import dataclass, replace

import pytest
import torch
import transformers as hf
from torch import Tensor
from torch.nn import functional as F

import regard
from regard.interchange.huggingface.folder import _join
from regard.models.construction import build
from regard.models.transformer.model import Transformer

LOGITS = 2e-5  # of their spread; the worst seen is 4e-6
GRADIENTS = 1e-4  # of their norm
HEADS = ("logits", "prediction_logits", "last_hidden_state")  # where theirs put the answer


@dataclass(frozen=True)
class Batch:
    """Rows of different lengths; behind them stands garbage, not the padding id, that no answer
    may depend on. (Nor may the padding id be read: `transformers` zeroes its embedding's
    gradient, and only ours would count it.)"""

    tokens: Tensor  # (rows, positions)
    lengths: list[int]
    source: Tensor | None = None
    source_lengths: list[int] | None = None
    segments: Tensor | None = None

    @classmethod
    def for_pair(cls, pair, lengths: list[int], source_lengths: list[int]) -> "Batch":
        config, rows = pair.ours.config, len(lengths)
        torch.manual_seed(2)
        tokens = torch.randint(3, config.vocabulary, (rows, max(lengths)))
        if pair.kind == "encoder-decoder":
            known = config.source_vocabulary or config.vocabulary
            source = torch.randint(3, known, (rows, max(source_lengths)))
            return cls(tokens, lengths, source, source_lengths)
        segments = torch.randint(config.segments, tokens.shape) if config.segments else None
        return cls(tokens, lengths, segments=segments)

    @property
    def real(self) -> Tensor:
        return torch.arange(self.tokens.shape[1]) < torch.tensor(self.lengths)[:, None]

    def for_theirs(self) -> dict[str, Tensor]:
        inputs = {"input_ids": self.tokens, "attention_mask": self.real.long()}
        if self.segments is not None:
            inputs["token_type_ids"] = self.segments
        if self.source is not None:
            source = replace(self, tokens=self.source, lengths=self.source_lengths, source=None)
            inputs = {f"decoder_{name}": tensor for name, tensor in inputs.items()}
            inputs |= source.for_theirs()
        return inputs


BATCHES = {
    "1": ([1, 1], [1, 33]),
    "7": ([7, 7, 7], [7, 7, 7]),
    "33": ([33], [7]),
    "7 padded": ([7, 1, 3], [3, 7, 1]),
    "33 padded": ([7, 33, 1, 20], [33, 1, 7, 12]),
}


@dataclass(frozen=True)
class Answer:
    """What a model says at the real positions, and of the whole text where it has a pooler."""

    scores: Tensor  # (real positions, vocabulary), or hidden vectors of a model without a head
    pooled: Tensor | None = None  # (rows, width)

    def loss(self, targets: Tensor) -> Tensor:
        loss = F.cross_entropy(self.scores, targets % self.scores.shape[-1])
        if self.pooled is not None:
            loss = loss + F.cross_entropy(self.pooled, torch.arange(len(self.pooled)))
        return loss


def ask_theirs(theirs, batch: Batch) -> Answer:
    found = theirs(**batch.for_theirs())
    scores = next(found[name] for name in HEADS if name in found)[batch.real]
    if getattr(theirs.base_model, "pooler", None) is None:
        return Answer(scores)
    return Answer(scores, theirs.base_model(**batch.for_theirs()).pooler_output)


def ask_ours(module: Transformer, batch: Batch) -> Answer:
    memory = None
    if batch.source is not None:
        memory = module.encode(batch.source, source_lengths=batch.source_lengths)
    hidden = module.hidden(batch.tokens, memory, lengths=batch.lengths, segments=batch.segments)
    scores = hidden if module.config.head == "none" else module.logits(hidden)
    pooled = module.pooled(hidden) if module.config.pooler else None
    return Answer(scores[batch.real], pooled)


def apart(one: Answer, other: Answer) -> float:
    """The largest difference between two answers, in units of the other's spread."""
    pairs = [(one.scores, other.scores)]
    if other.pooled is not None:
        pairs.append((one.pooled, other.pooled))
    return max(float((a - b).abs().max() / b.std()) for a, b in pairs)


@pytest.mark.parametrize("name", BATCHES)
@torch.no_grad()
def test_logits_agree_at_every_real_position(pair, name):
    batch = Batch.for_pair(pair, *BATCHES[name])
    theirs = ask_theirs(pair.theirs, batch)
    assert theirs.scores.std() > 0.05  # else agreement would mean nothing
    assert apart(ask_ours(pair.ours.module, batch), theirs) < LOGITS


def test_the_gradient_of_every_parameter_agrees(pair):
    batch = Batch.for_pair(pair, *BATCHES["33 padded"])
    targets = torch.randint(1000, (int(batch.real.sum()),))
    module, theirs = pair.ours.module, pair.their_tensors()
    rules = {rule.ours: rule for rule in pair.family.rules(module.config)}
    ours = dict(module.named_parameters())
    assert rules.keys() == ours.keys()
    for tensor in [*ours.values(), *(theirs[n] for rule in rules.values() for n in rule.theirs)]:
        tensor.requires_grad_().grad = None  # Marian's output bias is a mere buffer of theirs
    ask_theirs(pair.theirs, batch).loss(targets).backward()
    ask_ours(module, batch).loss(targets).backward()
    gradients = {name: tensor.grad for name, tensor in theirs.items()}
    used = {name for rule in rules.values() for name in rule.theirs}
    assert {name for name in used if gradients[name] is None} == set()  # which theirs never read
    gaps = {}
    for name, rule in rules.items():
        # Joined first: a key bias alone has no gradient (it shifts all scores alike), only noise.
        expected = _join(rule, gradients)
        assert expected.norm() > 0, name
        gaps[name] = float((ours[name].grad - expected).norm() / expected.norm())
    assert {name: gap for name, gap in gaps.items() if gap > GRADIENTS} == {}


@torch.no_grad()
def greedy(module: Transformer, prompt: Tensor, source: Tensor | None, count: int):
    """The likeliest continuation, by a state: the prompt at once, then a token at a time."""
    memory = None if source is None else module.encode(source)
    state = module.start(len(prompt), prompt.shape[1] + count)
    tokens, logits = [prompt], []
    for _ in range(count):
        logits.append(module(tokens[-1], memory, state)[:, -1])  # (rows, vocabulary)
        tokens.append(logits[-1].argmax(-1)[:, None])  # (rows, 1)
    return torch.cat(tokens, dim=1), torch.stack(logits)


def test_64_greedy_tokens_are_the_same_and_so_is_every_step(pair):
    if pair.kind == "encoder":
        pytest.skip("an encoder continues nothing")
    batch = Batch.for_pair(pair, [7, 7], [33, 33])
    prompt, source = batch.tokens, batch.source
    inputs = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}
    if source is not None:
        prompt[:, 0] = pair.theirs.config.decoder_start_token_id  # which theirs insist on
        inputs = {"input_ids": source, "attention_mask": torch.ones_like(source)}
        # Given, because theirs makes one as deep as the encoder, too small for a deeper decoder.
        cache = hf.EncoderDecoderCache(hf.DynamicCache(), hf.DynamicCache())
        inputs |= {"decoder_input_ids": prompt, "past_key_values": cache}
    settings = pair.theirs.generation_config
    settings.eos_token_id = settings.forced_eos_token_id = None  # so that 64 come
    written = pair.theirs.generate(
        **inputs,
        max_new_tokens=64,
        do_sample=False,
        use_cache=True,
        output_logits=True,
        return_dict_in_generate=True,
    )
    tokens, logits = greedy(pair.ours.module, prompt, source, 64)
    assert tokens.shape == (2, 7 + 64)
    assert torch.equal(tokens, written.sequences)
    # Some random models repeat one token for ever: their scores have more to disagree about.
    assert apart(Answer(logits), Answer(torch.stack(written.logits))) < LOGITS


@pytest.mark.parametrize("shard_bytes", [5_000_000_000, 8_000])
@torch.no_grad()
def test_what_we_write_they_load_and_it_computes_the_same(pair, tmp_path, shard_bytes):
    regard.save(pair.ours, tmp_path, shard_bytes)
    shards = list(tmp_path.glob("*.safetensors"))
    assert (len(shards) > 3) == (shard_bytes < 1e6)
    bare = isinstance(pair.theirs, hf.BertModel)
    theirs, report = type(pair.theirs).from_pretrained(
        tmp_path,
        output_loading_info=True,
        **({"add_pooling_layer": pair.ours.config.pooler} if bare else {}),
    )
    # The next-sentence head is the one part of theirs that we do not keep.
    lost = {f"cls.seq_relationship.{part}" for part in ("weight", "bias")}
    pretraining = type(theirs).__name__ == "BertForPreTraining"
    assert set(report.pop("missing_keys")) == (lost if pretraining else set())
    assert not any(report.values()), report
    before, after = pair.theirs.state_dict(), theirs.state_dict()
    assert before.keys() == after.keys()
    if not pair.ours.config.tied:
        lost.add("cls.predictions.bias")  # of an untied head theirs read `decoder.bias` instead
    changed = {name for name in before.keys() - lost if not torch.equal(before[name], after[name])}
    assert changed == set()
    batch = Batch.for_pair(pair, *BATCHES["33 padded"])
    assert apart(ask_theirs(theirs, batch), ask_theirs(pair.theirs, batch)) == 0
    assert apart(ask_ours(pair.ours.module, batch), ask_theirs(theirs, batch)) < LOGITS


@pytest.mark.parametrize("shard_bytes", [5_000_000_000, 8_000])
def test_what_we_write_we_load_equal_to_the_bit(pair, tmp_path, shard_bytes):
    regard.save(pair.ours, tmp_path, shard_bytes)
    again = regard.load(tmp_path)
    assert again.config == pair.ours.config
    before, after = pair.ours.module.state_dict(), again.module.state_dict()
    assert before.keys() == after.keys()
    assert {name for name in before if not torch.equal(before[name], after[name])} == set()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_folder_keeps_its_number_type(pair, tmp_path, dtype):
    folder = tmp_path / "theirs"
    deepcopy(pair.theirs).to(dtype).save_pretrained(folder)
    ours = regard.load(folder)
    assert {p.dtype for p in ours.module.parameters()} == {dtype}
    regard.save(ours, tmp_path / "ours")
    again = type(pair.theirs).from_pretrained(tmp_path / "ours")
    assert again.dtype == dtype
    module = regard.load(tmp_path / "ours").module
    for (name, one), other in zip(module.named_parameters(), ours.module.parameters(), strict=True):
        assert one.dtype == dtype, name
        assert torch.equal(one, other), name
    assert {p.dtype for p in regard.load(folder, dtype=torch.float32).module.parameters()} == {
        torch.float32
    }


def test_token_ids_survive_being_loaded_and_saved(pair, tmp_path):
    regard.save(pair.ours, tmp_path)
    before = pair.theirs.config
    after = type(before).from_pretrained(tmp_path)
    names = [name for name in before.to_dict() if name.endswith("_token_id")]
    assert len(names) >= 3
    assert {n: getattr(after, n) for n in names} == {n: getattr(before, n) for n in names}


def test_the_config_we_write_says_what_theirs_said(pair, tmp_path):
    regard.save(pair.ours, tmp_path)
    before = pair.theirs.config
    after = type(before).from_pretrained(tmp_path)
    said = {key: value for key, value in before.to_dict().items() if value is not None}
    for key in ("transformers_version", "dtype", "_name_or_path"):
        said.pop(key, None)
    if said.get("activation_function") == "swish":
        said["activation_function"] = "silu"  # another name for it
    assert {key: getattr(after, key) for key in said} == said


@pytest.mark.parametrize("case", ["llama llama3", "llama linear"])
@torch.no_grad()
def test_scaled_rope_is_far_from_unscaled_in_these_tests(pair_of, case):
    pair = pair_of(case)
    unscaled = build(replace(pair.ours.config, rotary_scaling=None))
    unscaled.load_state_dict(pair.ours.module.state_dict())
    batch = Batch.for_pair(pair, *BATCHES["33 padded"])
    assert apart(ask_ours(unscaled.eval(), batch), ask_theirs(pair.theirs, batch)) > 0.1
