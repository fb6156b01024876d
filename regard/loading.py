"""A model in hand: loaded from a run or a folder, written with, saved again."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.feeds.images import as_tensor
from regard.data.readers.images import read_image
from regard.decoding.captions import Caption, captioned
from regard.decoding.embedding import Pool, embedded
from regard.decoding.gaps import Filling, filled
from regard.decoding.scoring import Score, scored
from regard.decoding.search.ensemble import together
from regard.decoding.settings import TARGET, TEXT, Beam, Sampling, SpecialTokens, require_whole
from regard.decoding.streams import Completion, Stream, continue_all, search_all
from regard.decoding.text_model import Given, TextModel
from regard.decoding.translation import Translation, least_risky, translated
from regard.errors import Problems, RegardError
from regard.interchange.huggingface.folder import load_folder, savable, save_folder
from regard.models.config import Ability, ModelConfig
from regard.models.construction import build as construct
from regard.models.construction import usable
from regard.models.kernels.converted import Converted
from regard.models.kernels.int8 import quantise
from regard.models.kernels.packed import packed
from regard.models.network import BaseModel, Network, SequenceModule
from regard.models.registry import named
from regard.runs.run_folder import is_folder, is_run
from regard.runs.stored_run import Run, open_run
from regard.storage.tensors import former_files, strange_files
from regard.text.tokenizer import Tokenizer
from regard.training.checkpoints.reading import PLACE

USUAL = Sampling()
BEAMS = 5  # of a translation
KNOWN = (str, Sequence, Tensor, np.ndarray)  # what is there at once; other iterables may be endless
ARGUMENTS = {"limit": "max_tokens", "beams": "beam", "n_best": "n"}
TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Model:
    """A module with its settings, and what it came with: a run's tokenizers, or a config.json."""

    module: BaseModel
    extra: Mapping[str, Any] = field(default_factory=dict)  # `save` keeps its token ids
    tokenizer: Tokenizer | None = None  # of a run: of its text, or of the target of pairs
    source_tokenizer: Tokenizer | None = None  # of a run on pairs; often the same one
    origin: Path | None = None  # the Hugging Face folder that it was loaded from

    @property
    def config(self) -> ModelConfig:
        return self.module.config

    @cached_property
    def speaker(self) -> TextModel:
        """The model as searches know it."""
        if not isinstance(self.module, SequenceModule):
            raise RegardError(
                "word vectors neither write nor judge texts; `regard words` looks at them"
            )
        signs = (
            _signs(self.extra, self.config)
            if self.tokenizer is None
            else special_tokens_of(self.config)
        )
        return TextModel(self.module, signs, self.tokenizer, self.source_tokenizer)

    def generate(
        self,
        prompts: Given | Sequence[str],
        *,
        n: int = 1,
        max_tokens: int = 200,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        banned: Sequence[int] = (),
        seed: int = 0,
        logprobs: int | None = None,
        stop: Iterable[str] = (),
        beam: Beam | int = 0,
        draft: "Model | None" = None,
    ) -> list[Completion]:
        """Continue a prompt (text or token ids), or several texts; `n` times each, side by side.

        An encoder–decoder takes them as sources. Settings are those of `decoding.Sampling`; the
        i-th text of every prompt is drawn with seed + i. `stop` strings end a text and are left
        out. `beam` > 0 searches instead of drawing and gives its `n` best. `draft` is a smaller
        model of the same vocabulary that proposes tokens.
        """
        # What is no list is left to the settings, which refuse it.
        banned = tuple(banned) if isinstance(banned, Iterable) else banned
        asked = Sampling(
            limit=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            banned=banned,
            seed=seed,
            logprobs=logprobs,
            named=_argument,
        )
        given = _several(prompts)
        if not beam:
            return self.stream(given, asked, n=n, stop=stop, draft=draft).whole()
        drawn = replace(asked, limit=USUAL.limit, banned=()) != USUAL or stop or draft is not None
        if drawn or (isinstance(beam, Beam) and (n != 1 or banned)):
            raise RegardError(
                "a beam search draws nothing: leave out temperature, filters, seed, logprobs, stop "
                "and draft, and say n and banned in the Beam if there is one"
            )
        if not isinstance(beam, Beam):
            beam = Beam(beams=beam, n_best=n, banned=banned, named=_argument)
        answers = search_all(self.speaker, given, beam, asked.limit)
        return [one for answer in answers for one in answer]

    def caption(
        self,
        images: str | Path | Sequence[str | Path],
        *,
        beam: Beam | int = 5,
        prefix: Given = "",
    ) -> list[Caption]:
        """The best caption of each PNG or JPEG file, with what each of its tokens looked at."""
        self.speaker.require(Ability.CAPTION, what="describe pictures")
        config: Any = self.config
        if not isinstance(images, str | Path | Sequence):
            raise RegardError(f"give the paths of images, not {images!r:.60}")
        named = [images] if isinstance(images, str | Path) else list(images)
        if not named:
            return []
        pixels = as_tensor([read_image(_path(one), config.picture) for one in named])
        if not isinstance(beam, Beam):
            beam = Beam(beams=beam, attention=True)
        found = captioned(self.speaker, pixels, beam, prefix=prefix)
        return [best[0] for best in found]

    def stream(
        self,
        prompts: Given | Sequence[Given],
        asked: Sampling | Sequence[Sampling] = USUAL,
        *,
        n: int = 1,
        stop: Iterable[str] = (),
        draft: "Model | None" = None,
        ahead: int = 4,
    ) -> Stream:
        """The same as it is written: iterate for `Piece`s; settings for all, or for each prompt."""
        if not isinstance(draft, Model | None):
            raise RegardError("a draft is a model; load it first: `draft=regard.load(path)`")
        mate = None if draft is None else draft.speaker
        given = _several(prompts)
        return continue_all(self.speaker, given, asked, n=n, stop=stop, draft=mate, ahead=ahead)

    def translate(
        self,
        texts: str | Iterable[Given],
        beam: Beam | int = BEAMS,
        *,
        rows: int = 32,
        max_tokens: int = 0,
        prefix: Given = "",
        mbr: int = 0,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> list[Translation]:
        """The best translation of each text, in order; a single text gives a list of one.

        `prefix` is how every translation must begin. With `mbr` so many are drawn instead, and the
        one that agrees best with all is taken (minimum Bayes risk).
        """
        found = self.translations(
            texts,
            beam,
            rows=rows,
            max_tokens=max_tokens,
            prefix=prefix,
            mbr=mbr,
            temperature=temperature,
            seed=seed,
        )
        return [best[0] for best in found]

    def translations(
        self,
        texts: str | Iterable[Given],
        beam: Beam | int = BEAMS,
        *,
        rows: int = 32,
        max_tokens: int = 0,
        prefix: Given = "",
        mbr: int = 0,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> Iterator[list[Translation]]:
        """For each text its `n_best`, as they come: 16 batches of `rows` are read at a time."""
        lazy = isinstance(texts, Iterable) and not isinstance(texts, KNOWN)
        lines: Iterable[Given] = texts if lazy else _several(texts)
        if mbr:
            if beam != BEAMS or not isinstance(prefix, str) or prefix:
                raise RegardError("mbr draws and does not search: leave out beam and prefix")
            asked = Sampling(max_tokens, temperature, seed=seed, named=_argument)
            return least_risky(self.speaker, lines, asked, samples=mbr, rows=rows)
        if (temperature, seed) != (USUAL.temperature, USUAL.seed):
            raise RegardError("a beam search draws nothing: temperature and seed are for mbr")
        chosen = beam if isinstance(beam, Beam) else Beam(beams=beam, named=_argument)
        problems = Problems("translate")
        require_whole(problems, "max_tokens", max_tokens, 0)
        problems.report()
        return translated(self.speaker, lines, chosen, rows=rows, limit=max_tokens, prefix=prefix)

    def score(
        self, texts: str | Sequence[Given], *, sources: str | Sequence[Given] | None = None
    ) -> list[Score]:
        """The log-probability of each text, given its source where the model reads one."""
        read = None if sources is None else _several(sources)
        return scored(self.speaker, _several(texts), sources=read)

    def fill(self, text: str, top: int = 5) -> Filling:
        """What an encoder puts where `[mask]` stands."""
        return filled(self.speaker, text, top)

    def embed(self, texts: str | Sequence[Given], pool: Pool = "mean") -> Tensor:
        """A vector for each text, (texts, width)."""
        return embedded(self.speaker, _several(texts), pool=pool)


def _named(given: object) -> str:
    """What was given, for a message; of a model that it is one."""
    return "a model" if isinstance(given, Model) else repr(given)


def _argument(setting: str) -> str:
    """A search's setting as the argument that it was given by."""
    return ARGUMENTS.get(setting, setting)


def _several(given: Any) -> list[Given]:
    """One text, or the ids of one, or several of them."""
    if isinstance(given, Tensor | np.ndarray):
        given = given.tolist()
    if isinstance(given, str):
        return [given]
    if not isinstance(given, Iterable) or isinstance(given, bytes | Mapping):
        raise RegardError(f"give texts, or token ids, not {given!r:.60}")
    several = list(given)
    ids = bool(several) and isinstance(several[0], int | np.integer)
    return [several] if ids else several


def special_tokens_of(config: ModelConfig) -> SpecialTokens:
    """What the first ids mean to a model that was trained here."""
    return TARGET if config.reads else TEXT


def _signs(extra: Mapping[str, Any], config: ModelConfig) -> SpecialTokens:
    """What a config.json says of its vocabulary; a plain module has the signs of a run."""
    ends = extra.get("eos_token_id")
    if ends is None:
        return special_tokens_of(config)
    both = config.reads_text
    starts = "decoder_start_token_id" if both else "bos_token_id"
    several = tuple(ends) if isinstance(ends, list) else (ends,)
    pad, begin = extra.get("pad_token_id"), extra.get(starts)
    pads = () if pad in (None, -1) else (pad,)  # some files say -1 for none
    problems = Problems("config.json")
    named = {"eos_token_id": several, "pad_token_id": pads}
    named |= {} if begin is None else {starts: (begin,)}
    for name, ids in named.items():
        known = [type(one) is int and 0 <= one < config.vocabulary for one in ids]
        usual = f"{name} must be a token's number, 0 to {config.vocabulary - 1:,}"
        problems.require(all(known), f"{usual}, not {extra.get(name)!r:.40}")
    problems.require(bool(several), "eos_token_id must not be an empty list")
    problems.report()
    never = tuple(one for one in pads if one not in several)
    return SpecialTokens(several[0] if begin is None else begin, several, never)


def text_model_of(run: Run) -> TextModel:
    """A run as searches know it."""
    return _of_run(run).speaker


def _of_run(run: Run) -> Model:
    source = run.source_tokenizer if run.config.reads_text else None
    return Model(run.module, {}, run.tokenizer, source)


def load(
    path: str | Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    int8: bool = False,
    fast: bool = False,
) -> Model:
    """Load a run, or a Hugging Face folder of the GPT-2, BERT, Llama, T5 or Marian family.

    `load(path).generate("Once")` writes, and so on; `load(path).module(tokens)` gives logits, for
    encoder–decoders `m.module(target, memory=m.module.encode(source))`. `dtype` None keeps the
    stored type. `int8` keeps the weights of a Transformer's products in eight bits; `fast` lays
    them out for this machine's CPU. Both are for writing alone: such a model is not trained, saved
    or moved.
    """
    folder = _path(path)
    if not is_folder(folder):
        raise RegardError(
            f"{folder} is not a folder; give a run, or one with config.json and safetensors"
        )
    if dtype is not None and dtype not in TYPES:
        known = ", ".join(str(kind) for kind in TYPES)
        raise RegardError(f"weights cannot be loaded as {dtype}; choose one of {known}")
    if is_run(folder):
        model = _of_run(open_run(folder, usable(device)))
        if isinstance(model.module, Network):  # counts have the numbers they have
            model.module.to(dtype)
    elif not (folder / "config.json").is_file():
        raise RegardError(
            f"{folder} is no run (it has no run.toml) and no Hugging Face folder (it has no "
            "config.json); name one of these"
        )
    else:
        model = Model(*load_folder(folder, usable(device), dtype), origin=folder.resolve())
    if int8 and Ability.CONVERT not in model.config.abilities:
        raise RegardError(
            f"{folder}: only a Transformer has weights to keep in eight bits; load it without int8"
        )
    return replace(model, module=_converted(model.module, int8, fast))


def build(model: ModelConfig | str, device: torch.device | str | None = None) -> Any:
    """The module that settings, or a model's name, describe, freshly initialised.

    On the `meta` device it takes no memory.
    """
    return construct(named(model) if isinstance(model, str) else model, device)


def ensemble(models: Sequence[Model]) -> Model:
    """Several models of one kind and vocabulary as one: the mean of what they expect counts.

    They may differ in all else. It has the first one's tokenizers, and writes and judges texts
    (`generate`, `stream`, `translate`, `score`); it has no vectors of its own, and is not saved.
    """
    listed = isinstance(models, Sequence) and all(isinstance(model, Model) for model in models)
    if not listed or not models:
        several = isinstance(models, list | tuple)
        given = ", ".join(map(_named, models)) if several else _named(models)
        given = f"[{given}]" if several else given
        raise RegardError(f"an ensemble is made of a list of models, not of {given:.80}")
    names = [f"model {number}" for number in range(1, len(models) + 1)]
    joint = together([model.speaker for model in models], names)
    return replace(models[0], module=joint.module)


def _converted(module: BaseModel, int8: bool, fast: bool) -> BaseModel:
    if Ability.CONVERT not in module.config.abilities:
        return module
    if int8:
        return quantise(module, keep=False)
    return packed(module, keep=False) if fast else module


def _path(given: object) -> Path:
    if not isinstance(given, str | Path):
        raise RegardError(f"a path must be a string or a Path, not a {type(given).__name__}")
    return Path(given)


def save(model: Model | BaseModel, path: str | Path, shard_bytes: int = 5_000_000_000) -> None:
    """Write a model as a Hugging Face folder that `transformers` and `regard.load` read.

    Weights of more than `shard_bytes` are split over several files with an index. The folder is
    new, or holds what `save` wrote before, or it is the one that the model was loaded from.
    """
    model = getattr(model, "_orig_mod", model)  # a compiled module wraps the real one
    if isinstance(model, BaseModel):
        model = Model(model)
    if not isinstance(model, Model):
        raise RegardError(f"save needs a model, then a path; a {type(model).__name__} is no model")
    module = savable(model.module)
    if any(isinstance(part, Converted) for part in module.modules()):
        raise RegardError("weights that were packed or rounded are not saved; load the model plain")
    if module.device.type == "meta":
        raise RegardError("a model on the meta device has no weights to save")
    try:
        _check_free(_path(path), model.origin)
    except OSError as error:
        raise RegardError(f"cannot write {path}: {error.strerror or error}") from None
    save_folder(module, _path(path), model.extra, shard_bytes)


def _check_free(folder: Path, origin: Path | None) -> None:
    """Refuse a folder whose files `save` would write over and did not write."""
    if not is_folder(folder):
        return
    if is_run(folder) or (folder / PLACE).is_file():
        raise RegardError(f"{folder} is a run or a part of one, which stays; name another folder")
    strange, config = strange_files(folder), folder / "config.json"
    if not strange and config.is_file() and not former_files(folder):
        strange = [config.name]
    if strange and folder.resolve() != origin:
        raise RegardError(
            f"{folder / strange[0]} would be lost, which regard.save did not write; name another "
            "folder"
        )
