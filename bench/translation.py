"""Translation on a CPU at the size of transformer-base: Regard, `transformers`, CTranslate2.

    python bench/translation.py RUN test.en [--beam 4] [--rows 32] [--sentences 1000]

All have the same weights: those of a trained small RUN, grown to width 512, 8 heads and hidden
2048 without changing what it computes (`grow`). Each contestant is a fresh process, started in
turn with the others, and gets the same batches, beams, limits and threads; loading and the first
batches to warm up are not timed. Tokens are those written, `</s>` included. Regard comes with
several batches at once, as it does by itself, and "one by one"; CTranslate2 with all threads on
each batch, as it does by itself, and with a thread for each batch ("side by side").

The searches are as alike as their settings allow: a hypothesis is worth its log-probability over
its length with `</s>`. Regard and `transformers` go on until no open hypothesis, at its present
length, is worth more than the worst of as many ended ones as beams; CTranslate2 stops at as many
ended ones as beams (of 200 sentences of Multi30k it then had 3.5 % otherwise, and none with a
patience of 2).
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from threading import Event
from typing import Any

import torch
from growing import grow
from measure import machine
from torch import Tensor

from regard.interchange.huggingface.folder import save_folder
from regard.loading import load as load_model
from regard.models.construction import build
from regard.models.transformer.config import TransformerConfig
from regard.models.transformer.model import Transformer
from regard.runs.stored_run import Run, open_run, write_run, write_weights
from regard.storage.tensors import TensorFolder
from regard.text.specials import BOS, EOS, PAD, SPECIALS

WORK = "work.json"


@dataclass(frozen=True)
class Batch:
    """Sources that end in `</s>`, longest first, and how many tokens a translation may have."""

    sources: list[list[int]]
    limit: int

    def padded(self) -> Tensor:
        """The sources, (rows, positions)."""
        longest = len(self.sources[0])
        return torch.tensor([ids + [PAD] * (longest - len(ids)) for ids in self.sources])

    def lengths(self) -> Tensor:
        return torch.tensor([len(ids) for ids in self.sources])


@dataclass(frozen=True)
class Terms:
    """What all are given alike, beside the batches."""

    beams: int
    threads: int


Translate = Callable[[list[Batch]], list[list[int]]]  # the targets, without <s> and </s>
Load = Callable[[Path, Terms], Translate]  # from the prepared folder


# Contestants: each imports its library, and gives what loads the prepared model.


def regard_as(kind: str, together: bool = True) -> Load:
    """As it comes, several batches side by side, or one by one with all threads."""

    def load(folder: Path, terms: Terms) -> Translate:
        module = load_model(folder / "regard", fast=True, int8=kind == "int8").module
        return _regard(module, terms, together)

    return load


def _regard(module: Transformer, terms: Terms, together: bool) -> Translate:
    from regard.decoding.parallel_batches import side_by_side
    from regard.decoding.search.beam import search
    from regard.decoding.settings import Beam

    @torch.inference_mode()
    def run(batch: Batch, over: Event) -> list[list[int]]:
        memory = module.encode(batch.padded(), batch.lengths())
        rows = len(batch.sources)
        asked = Beam(terms.beams)
        limits = [batch.limit] * rows
        found = search(module, [[BOS]] * rows, limits, asked, memory=memory, over=over)
        return [each.hypotheses[0].ids for each in found]

    def run_all(batches: list[Batch]) -> list[list[int]]:
        if not together:
            return [target for batch in batches for target in run(batch, Event())]
        found = {id(batch): targets for batch, targets in side_by_side(run, batches, module)}
        return [target for batch in batches for target in found[id(batch)]]

    return run_all


def transformers_float32() -> Load:
    from transformers import MarianMTModel  # noqa: F401  (its memory is not the model's)

    def load(folder: Path, terms: Terms) -> Translate:
        model = marian(folder)

        def run(batch: Batch) -> list[list[int]]:
            source = batch.padded()
            found = model.generate(
                source,
                attention_mask=(source != PAD).long(),
                num_beams=terms.beams,
                max_new_tokens=batch.limit,
                length_penalty=1.0,
                early_stopping=False,
                do_sample=False,
            )
            return [_until_end(row) for row in found[:, 1:].tolist()]

        return lambda batches: [target for batch in batches for target in run(batch)]

    return load


def ctranslate2_as(kind: str, side_by_side: bool = False) -> Load:
    """With all threads for each batch, as it comes, or with a batch for each thread."""
    import ctranslate2

    def load(folder: Path, terms: Terms) -> Translate:
        translator = ctranslate2.Translator(
            str(folder / f"ctranslate2-{kind}"),
            device="cpu",
            compute_type=kind,
            inter_threads=terms.threads if side_by_side else 1,
            intra_threads=1 if side_by_side else terms.threads,
        )

        def begin(batch: Batch) -> list[Any]:
            return translator.translate_batch(
                [[_spelled(i) for i in ids] for ids in batch.sources],
                beam_size=terms.beams,
                length_penalty=1.0,
                max_decoding_length=batch.limit,
                return_end_token=True,  # so that a length counts it, as with the others
                asynchronous=True,
            )

        def run(batches: list[Batch]) -> list[list[int]]:
            coming = [one for batch in batches for one in begin(batch)]
            best = (one.result().hypotheses[0] for one in coming)
            return [_until_end([_meant(token) for token in target]) for target in best]

        return run

    return load


def _until_end(ids: list[int]) -> list[int]:
    return ids[: ids.index(EOS)] if EOS in ids else ids


def _spelled(token: int) -> str:
    """CTranslate2 reads and writes texts; ours are the ids in digits."""
    return SPECIALS[token] if token < len(SPECIALS) else str(token)


def _meant(text: str) -> int:
    return int(text) if text.isdigit() else SPECIALS.index(text)


CONTESTANTS: dict[str, Callable[[], Load]] = {
    "regard float32": lambda: regard_as("float32"),
    "regard int8": lambda: regard_as("int8"),
    "regard float32 one by one": lambda: regard_as("float32", together=False),
    "regard int8 one by one": lambda: regard_as("int8", together=False),
    "transformers float32": transformers_float32,
    "ctranslate2 float32": lambda: ctranslate2_as("float32"),
    "ctranslate2 int8": lambda: ctranslate2_as("int8"),
    "ctranslate2 float32 side by side": lambda: ctranslate2_as("float32", side_by_side=True),
    "ctranslate2 int8 side by side": lambda: ctranslate2_as("int8", side_by_side=True),
}
NEEDS = {
    "transformers float32": "transformers",
    "ctranslate2 float32": "ctranslate2",
    "ctranslate2 int8": "ctranslate2",
    "ctranslate2 float32 side by side": "ctranslate2",
    "ctranslate2 int8 side by side": "ctranslate2",
}


# Preparing: the grown model as each of them stores it.


def prepare(run: Run, grown: Transformer, names: list[str], folder: Path) -> None:
    """Everything the contestants will read, in one folder."""
    weights = grown.state_dict()
    write_run(folder / "regard", run.settings, grown.config, [run.tokenizer])
    write_weights(folder / "regard", weights)
    if "transformers float32" in names:
        to_transformers(grown.config, weights, folder / "transformers")
    for kind in ("float32", "int8"):
        if f"ctranslate2 {kind}" in names:
            to_ctranslate2(grown.config, weights, kind, folder / f"ctranslate2-{kind}")


def to_transformers(config: TransformerConfig, weights: Mapping[str, Tensor], folder: Path) -> None:
    """The same model as a Marian, whose attention and head have biases: zeros here."""
    biased = {"attention_bias": True, "head_bias": True, "positions": "sinusoidal-halves"}
    twin = build(replace(config, **biased))
    nothing = {name: torch.zeros_like(there) for name, there in twin.state_dict().items()}
    twin.load_state_dict({name: weights.get(name, nothing[name]) for name in nothing})
    ids = {"bos": BOS, "eos": EOS, "pad": PAD, "decoder_start": BOS, "forced_eos": None}
    save_folder(twin, folder, {f"{name}_token_id": token for name, token in ids.items()})


def marian(folder: Path) -> Any:
    """What `to_transformers` wrote, with the positions, which a Marian does not store."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import MarianMTModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = MarianMTModel.from_pretrained(folder / "transformers").eval()
    for name in ("encoder", "decoder"):
        waves = TensorFolder(folder / "regard")[f"{name}.positions.table.weight"]
        getattr(model.model, name).embed_positions.weight.data.copy_(waves)
    return model


def to_ctranslate2(
    config: TransformerConfig, weights: Mapping[str, Tensor], kind: str, folder: Path
) -> None:
    """The same model in CTranslate2's own format."""
    from ctranslate2.specs import TransformerSpec

    # Copies: its quantisation scales the arrays that it is given, in place.
    arrays = {name: weight.numpy().copy() for name, weight in weights.items()}

    def fill(linear: Any, name: str) -> None:
        linear.weight = arrays[f"{name}.weight"]
        if f"{name}.bias" in arrays:
            linear.bias = arrays[f"{name}.bias"]

    def fill_norm(norm: Any, name: str) -> None:
        norm.gamma, norm.beta = arrays[f"{name}.weight"], arrays[f"{name}.bias"]

    spec = TransformerSpec.from_config(
        (config.encoder_layers, config.layers), config.heads, pre_norm=False
    )
    embedding = arrays["embed.tokens.weight"]
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = embedding
    spec.decoder.projection.weight = embedding
    for stack, theirs in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        theirs.position_encodings.encodings = arrays[f"{stack}.positions.table.weight"]
        for i, layer in enumerate(theirs.layer):
            ours = f"{stack}.blocks.{i}"
            fill(layer.self_attention.linear[0], f"{ours}.attention.query_key_value")
            fill(layer.self_attention.linear[1], f"{ours}.attention.output")
            fill_norm(layer.self_attention.layer_norm, f"{ours}.attention_norm")
            if stack == "decoder":
                fill(layer.attention.linear[0], f"{ours}.cross.query")
                fill(layer.attention.linear[1], f"{ours}.cross.key_value")
                fill(layer.attention.linear[2], f"{ours}.cross.output")
                fill_norm(layer.attention.layer_norm, f"{ours}.cross_norm")
            fill(layer.ffn.linear_0, f"{ours}.feedforward.expand")
            fill(layer.ffn.linear_1, f"{ours}.feedforward.contract")
            fill_norm(layer.ffn.layer_norm, f"{ours}.feedforward_norm")
    vocabulary = [_spelled(token) for token in range(config.vocabulary)]
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.validate()
    spec.optimize(quantization=kind)
    folder.mkdir()
    spec.save(str(folder))


# Running: one contestant in its own process, and all of them in turn.


def enter(name: str, folder: Path) -> dict[str, Any]:
    """One contestant's seconds, memory and translations."""
    work = json.loads((folder / WORK).read_text())
    terms, batches = Terms(**work["terms"]), [Batch(**each) for each in work["batches"]]
    torch.set_num_threads(terms.threads)
    load = CONTESTANTS[name]()
    before = _memory("VmRSS")
    run = load(folder, terms)
    loaded = _memory("VmHWM")
    run(batches[: terms.threads])
    begin, used = time.perf_counter(), time.process_time()
    found = run(batches)
    spent = {"seconds": time.perf_counter() - begin, "cpu": time.process_time() - used}
    memory = {"before": before, "loaded": loaded, "peak": _memory("VmHWM")}
    return {**spent, **memory, "found": found}


def _memory(what: str) -> float:
    """MiB of this process, on Linux. Not ru_maxrss: a child begins with its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{what}:"))
    return int(line.split()[1]) / 1024


def start(name: str, folder: Path, threads: int, tiny: bool) -> dict[str, Any]:
    if tiny:
        return enter(name, folder)
    command = [sys.executable, __file__, "--contestant", name, str(folder), "-"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    asked = subprocess.run(command, env=environment, capture_output=True, text=True)
    if asked.returncode:
        sys.exit(f"{name} failed:\n{asked.stderr[-3000:]}")
    return json.loads(asked.stdout.splitlines()[-1])


def batched(sources: list[list[int]], rows: int) -> list[Batch]:
    """Longest first, so that the batch to warm up with is the largest."""
    ordered = sorted(sources, key=len, reverse=True)
    parts = [ordered[first : first + rows] for first in range(0, len(ordered), rows)]
    return [Batch(part, int(1.5 * len(part[0])) + 10) for part in parts]


@torch.inference_mode()
def check(small: Transformer, grown: Transformer, theirs: Any, batch: Batch) -> None:
    """Say how far the logits are apart, the target being the source with <s> before it."""
    source, lengths = batch.padded(), batch.lengths()
    target = torch.cat((torch.full((len(source), 1), BOS), source[:, :-1]), dim=1)
    real = source != PAD
    want = small(target, small.encode(source, lengths))[real]
    have = grown(target, grown.encode(source, lengths))[real]
    print(f"grown, logits differ by at most {float((have - want).abs().max()):.1e}", end="")
    if theirs is not None:
        given = {"attention_mask": real.long(), "decoder_input_ids": target}
        other = theirs(input_ids=source, **given).logits[real]
        print(f"; in transformers by {float((other - want).abs().max()):.1e}", end="")
    print(f" (they reach {float(want.abs().max()):.1f})")


def present() -> list[str]:
    """The contestants that can run here; the others are named with what they lack."""
    found = []
    for name in CONTESTANTS:
        needed = NEEDS.get(name)
        if needed and importlib.util.find_spec(needed) is None:
            print(f"{name} is left out: there is no {needed} here")
        else:
            found.append(name)
    return found


def table(results: Mapping[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Medians over the rounds; memory in MiB, shares of translations that are the same."""
    ours, peer = results["regard float32"], results.get("transformers float32")
    figures = {}
    for name, rounds in results.items():
        tokens = sum(len(target) + 1 for target in rounds[0]["found"])
        speeds = sorted(tokens / each["seconds"] for each in rounds)
        row = {"tokens/s": median(speeds), "slowest": speeds[0], "fastest": speeds[-1]}
        if peer:
            pairs = zip(peer, rounds, strict=True)
            theirs = sum(len(target) + 1 for target in peer[0]["found"])
            ratios = [tokens / b["seconds"] / (theirs / a["seconds"]) for a, b in pairs]
            row["ratio"] = median(ratios)
            row["as transformers"] = _same(rounds[0]["found"], peer[0]["found"])
        row["as regard"] = _same(rounds[0]["found"], ours[0]["found"])
        row["tokens/cpu-s"] = tokens / median(each["cpu"] for each in rounds)
        row["peak"] = median(each["peak"] for each in rounds)
        for when in ("loaded", "peak"):
            row[f"added {when}"] = median(each[when] - each["before"] for each in rounds)
        figures[name] = row
    return figures


def _same(left: list[list[int]], right: list[list[int]]) -> float:
    return sum(a == b for a, b in zip(left, right, strict=True)) / len(left)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a trained translation run of a small model")
    parser.add_argument("source", type=Path, help="sentences, one a line")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--rows", type=int, default=32, help="sentences in a batch")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    known = ", ".join(CONTESTANTS)
    only = f"contestants beside regard float32 (all: {known})"
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, metavar="NAME", help=only)
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    parser.add_argument("--tiny", action="store_true", help="in this process, of few sentences")
    asked = parser.parse_args()
    if asked.tiny:
        asked.rows, asked.sentences, asked.rounds, asked.threads = 2, 4, 1, 1
    if asked.contestant:
        print(json.dumps(enter(asked.contestant, asked.run)))
        return
    torch.set_num_threads(asked.threads)
    run = open_run(asked.run)
    lines = asked.source.read_text(encoding="utf-8").splitlines()[: asked.sentences]
    batches = batched([[*run.tokenizer.encode(line).tolist(), EOS] for line in lines], asked.rows)
    names = [name for name in present() if name in {"regard float32", *(asked.only or CONTESTANTS)}]
    config, weights = grow(run.module)
    grown = build(config).eval()
    grown.load_state_dict(weights)
    print(
        f"{config.encoder_layers} + {config.layers} layers of {config.width}, vocabulary "
        f"{config.vocabulary:,}; {len(lines)} sentences, {asked.rows} rows, beam {asked.beam}  "
        f"[{machine()}]"
    )
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(run, grown, names, folder)
        theirs = marian(folder) if "transformers float32" in names else None
        check(run.module, grown, theirs, batches[0])
        terms = Terms(asked.beam, asked.threads)
        work = {"terms": vars(terms), "batches": [vars(batch) for batch in batches]}
        (folder / WORK).write_text(json.dumps(work))
        for turn in range(asked.rounds):
            for name in names:
                results[name].append(start(name, folder, asked.threads, asked.tiny))
                seconds = results[name][-1]["seconds"]
                print(f"round {turn + 1}: {name} {seconds:.1f} s", flush=True)
    figures = table(results)
    print(f"{'':34}tokens/s   ratio  by cpu-s    same  peak MiB   added")
    for name, row in figures.items():
        ratio = f"{row['ratio']:.2f}" if "ratio" in row else "-"
        print(
            f"{name:34}{row['tokens/s']:8.0f}{ratio:>8}{row['tokens/cpu-s']:10.0f}"
            f"{row['as regard']:8.1%}{row['peak']:10.0f}{row['added peak']:8.0f}"
        )
    load = os.getloadavg()[1]
    print(json.dumps({"machine": machine(), "load": load, **vars(terms), **figures}))


if __name__ == "__main__":
    main()
