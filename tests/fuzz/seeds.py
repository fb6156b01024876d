"""What fuzzing begins from: one good input at least for every reader, by target and slot."""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import good

from regard.interchange.arpa import write_arpa
from regard.interchange.word_vectors import write_vectors
from regard.models.counting.model import NGramConfig, table_of
from regard.text.specials import BOS

STEP = {"event": "step", "step": 1, "time": 0.5, "tokens": 8, "learning_rate": 0.1}
END = {"event": "end", "step": 2, "time": 0.7, "reason": "finished", "best_step": 1}
EVENTS: tuple[dict[str, Any], ...] = (
    {"event": "start", "step": 0, "time": 0.0, "model": "gpt2-tiny", "steps": 9, "message": "a"},
    {**STEP, "loss": 2.5, "gradient_norm": 1.5, "epoch": 0.1, "tokens_per_second": 16.0},
    {"event": "validation", "step": 1, "time": 0.6, "tokens": 8, "loss": 2.4, "best": True},
    {"event": "through_time", "step": 1, "time": 0.6, "norms": [1.0, 0.5, None]},
    {"event": "fault", "step": 2, "time": 0.7, "first": 2},
    {"event": "back", "step": 2, "to": 1, "time": 0.7},
    {"event": "resume", "step": 1, "time": 0.1},
    {**STEP, "step": 2, "tokens": 16, "loss": "nan", "gradient_norm": "inf"},
    {"event": "validation", "step": 2, "time": 0.6, "tokens": 16, "bleu": 3.5, "best": True},
    {"event": "evaluation", "step": 2, "time": 0.6, "loss": 2.4, "perplexity": 11.0, "tokens": 5},
    {**END, "best_loss": 2.4, "seconds": 1.0, "tokens_per_second": 16.0},
)
SMALL_ARPA = b"""\\data\\
ngram 1=3
ngram 2=1

\\1-grams:
-1\t<s>\t-0.5
-1e0\t</s>
-99\t<unk>

\\2-grams:
-0.1\t<s> </s>

\\end\\
"""


def seeds(name: str) -> list[bytes]:
    """The inputs of one target."""
    return [bytes([64 + slot]) + content for slot, content in globals()[f"_{name}"]()]


Inputs = Iterator[tuple[int, bytes]]


def _texts() -> Inputs:
    text, lines = (
        "a cab\r\na «bad» caf\u00e9 <unk>\n",
        '{"text": "a cab\\n"}\n\n{"text": "\\ud83d", "n": 1}\n',
    )
    yield 0, text.encode()
    yield 0, b"\xef\xbb\xbfa\xff\xc3 b\n" + text.encode() * 3
    yield 1, lines.encode()
    yield 2, text.encode()
    yield 3, lines.encode() * 2
    yield 4, gzip.compress(text.encode(), mtime=0)
    yield 4, gzip.compress(text.encode(), mtime=0)[:-6]
    yield 5, text.encode()


def _lists() -> Inputs:
    yield 0, "a cab\tb\na\t b \n\n\xff\tc\n".encode()
    yield 1, b'{"source": "a", "target": "b"}\n{"source": "a b", "target": ""}\n'
    yield 2, b"a\nb\n\0b\nc d\n"
    box = {"start": 0, "stop": 1, "box": [0, 0, 1.5, 2]}
    yield 3, json.dumps({"image": "a.png", "captions": ["a", "b"], "boxes": [None, [box]]}).encode()
    yield 3, b'{"image": "a.png", "caption": "a cab"}\n{"image": "b/../c.png", "caption": ""}\n'
    yield 4, b"a.png\ta cab\na.png\tb\n./b.png\tc\n"
    yield 5, b": capitals\na b c d\n# no\n: gram1\na b c e\n"
    yield 5, b"word,word,number\na,b,1.5\nc,d,2\n"
    yield 6, b"0-0 1?2\n1p1\n"


def _images() -> Inputs:
    for mode in ("RGB", "RGBA", "L", "P", "1"):
        yield 0, good.picture("PNG", mode)
    yield 1, good.picture("PNG")
    yield 2, good.picture("JPEG")
    yield 2, good.picture("JPEG", "CMYK")


def _settings() -> Inputs:
    yield (
        0,
        b'extends = "python"\nabout = "a"\n[training]\nsteps = 9\n[model]\npreset = "gpt2-tiny"\n',
    )
    yield 0, b'[data]\ntrain = ["a"]\nheld_out = 0.1\n[model]\nrotary_scaling = {kind = "linear"}\n'
    for slot in (1, 2):
        yield slot, _change(model={"layers": 2}, training={"context": 4})
        for model in ({"preset": "lstm", "width": 8}, {"preset": "ngram", "order": 2}):
            yield slot, _change(**{"-model": 0}, model=model, asked={"training": {"steps": 1}})
    yield 3, b"training.steps=9\ndata.train=a\nmodel.preset=gpt2-tiny\nmodel.layers=2"
    yield 3, b'optimizer.clip=1e-3\ntokenizer.file = "a"\ndata.valid=["a", "b"]'
    yield 4, b"train\na\n--steps\n9\n--set\ntraining.seed=1"
    yield 4, b"generate\nr\n--temperature\n0.5\n--top-k\n3"
    for command in ("translate", "cost", "plot", "words", "compare", "evaluate", "runs"):
        yield 4, f"{command}\na\n--json".encode()
    yield 4, b"parameters\n1,000.5k"


def _tokenizers() -> Inputs:
    for kind in ("char", "word"):
        yield 0, json.dumps(good.spelled(kind), separators=(",", ":")).encode()
    token = {"id": 5, "content": "x", "single_word": False, "special": True}
    for slot in (1, 2, 3, 4):
        yield slot, _change(model={"vocab": {"x": 9}})
        yield slot, _change(added_tokens={"0": token}, normalizer={"type": "NFC"})
        yield slot, _change(pre_tokenizer={"type": "ByteLevel", "use_regex": True})
    yield 4, _change(model={"merges": [["a", "b"]], "dropout": None, "byte_fallback": False})
    seal = good.tokenizer().fingerprint.encode()
    yield 5, seal + b"\n" + _change(model={"vocab": {"x": 9}})


def _tensors() -> Inputs:
    text = json.dumps(good.header(), separators=(",", ":")).encode()
    yield 0, good.stored(text, bytes(24))
    yield 1, text
    yield 1, b'{"__metadata__":{"format":"pt","seal":"0","checksums":"{}"}}'
    yield 2, b"{}"
    yield 2, _change(a={"shape": [4], "dtype": "F16"}, __metadata__={"checksums": "{}"})
    yield 3, _change(weight_map={"one": "two.safetensors"}, metadata={})


def _folders() -> Inputs:
    yield 0, json.dumps({"model_type": "gpt2", "n_layer": 1}).encode()
    for slot, name in enumerate(good.FAMILIES, 1):
        kept = json.loads((good.family(name) / "config.json").read_text())
        yield slot, _change(eos_token_id=2)
        yield slot, json.dumps(kept, separators=(",", ":")).encode()
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    yield 3, _change(rope_scaling=rope, rope_theta=1e4)


def _counts() -> Inputs:
    yield 0, b"".join(tensor.numpy().tobytes() for tensor in good.counted().values())
    yield 0, b""
    path = good.folder() / "seed.arpa"
    table = table_of(good.counted(), NGramConfig(len(good.tokenizer()), 3), BOS)
    words = [f"w{i}" for i in range(table.vocabulary)]
    words[1:4] = ["<s>", "</s>", "<unk>"]
    write_arpa(table, words, path)
    yield 1, path.read_bytes()
    yield 1, SMALL_ARPA
    yield 2, path.read_bytes()


def _vectors() -> Inputs:
    for binary in (False, True):
        path = good.folder() / "seed.vectors"
        write_vectors(good.words(), path, binary=binary)
        yield 0, path.read_bytes()
        yield 1, path.read_bytes()
    yield 0, b"a 1 2 3\nb c 4 5 6\nd 1e0 -2.5 .5\n"


def _kept() -> Inputs:
    yield 0, b"{}"
    yield 0, _change(place={"best_loss": None, "step": 4}, rows={"model.safetensors": {"a": None}})
    shares = {"a": {"first": 0, "last": 2, "shape": [2, 2]}}
    yield 0, _change(rows={"model.safetensors": shares}, about={"settings": {"training": {}}})
    yield 1, json.dumps(good.place()).encode()
    yield 2, b'{"host": "here", "process": 5, "since": "2026-01-02T03:04:05+00:00"}\n'
    yield 3, _change(tokens=9, shard=4, documents=1, vocabulary=70000, unknown=0)
    yield 4, bytes(8) + (9).to_bytes(8, "little")
    yield 5, (good.prepared() / "train" / "meta.json").read_bytes()
    yield 6, _change(products={"bfloat16": {"axes": [[1], [1], [1]], "rates": [1.0]}}, kernel=1)
    yield 6, _change(kind="cuda", launch={"forward call": 1e-6}, memory=1, versions={"a": "b"})
    yield 7, _change(figures={"quality": {"by_length": [{"first": 1, "last": 2, "bleu": 1.0}]}})
    yield 7, _change(models={"a": {"steps": 3, "asked": {"training": {}}}})


def _logs() -> Inputs:
    lines = [json.dumps(event).encode() + b"\n" for event in EVENTS]
    yield 0, b"".join(lines)
    for line in lines:
        yield 0, line
    said = {"word": "running", "message": "", "step": 2, "steps": 9, "model": "m"}
    for place in (0, 19, 20):  # of a line, and of none
        yield (
            1,
            json.dumps({**said, "bests": [[2, 1.5, None], [3, None, 9.5]], "log": place}).encode(),
        )


def _change(**values: Any) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode()
