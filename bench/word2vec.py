"""Word vectors on a CPU: Regard and gensim, their speed and what their vectors know.

    python bench/word2vec.py books.txt.gz --questions questions-words.txt --similarity EN-*.txt

Both get the same words: runs of a to z in lower case, a line being a sequence, those that occur
less than `--least` times left out. Both have width 100, window 5, 5 negatives, and thin words with
a share above 1e-4. Each contestant is a fresh process, started in turn with the other.

Speed is that of `--passes` over `--sample` words, with as many threads as workers; a word is one of
the text, before thinning. Reading and counting are not timed; to start a second process is, which
Regard does where there is enough to do. Quality is that of `--epochs` over
all words: the rank correlation with people's judgement of similarity, and the share of analogies
"a is to b as c is to d" whose d is the nearest word to b - a + c, both in percent, over the words
that are known.

With `--device cuda` Regard runs alone.
"""

import argparse
import gzip
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from measure import machine

from regard.families.word_vectors.steps import VectorSteps
from regard.families.word_vectors.walk import Walk
from regard.models.word_vectors.model import Word2VecConfig, WordVectors
from regard.text.specials import BOS, EOS, SPECIALS
from regard.training.memory.allocator import keep_freed

METHODS = ("skip-gram", "cbow")


@dataclass(frozen=True)
class Work:
    """What one contestant is asked to do."""

    folder: str
    method: str
    threads: int
    epochs: int
    seed: int
    device: str
    words: int = 0  # of the text, from its beginning; 0: all
    judge: bool = False


class Array:
    """Token ids in memory."""

    def __init__(self, ids: np.ndarray) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.ids[start:stop]


# Preparing: the words as ids, `<s> … </s>` around each line.


def prepare(corpus: Path, least: int, folder: Path) -> tuple[int, int]:
    """Write words.json and ids.npy; return how many words, and how many different ones."""
    opened = gzip.open if corpus.suffix == ".gz" else open
    with opened(corpus, "rt", encoding="utf-8", errors="replace") as file:
        lines = [words for line in file if (words := re.findall("[a-z]+", line.lower()))]
    counts = Counter(word for words in lines for word in words)
    known = [word for word, count in counts.most_common() if count >= least]
    ids = {word: i for i, word in enumerate(known, len(SPECIALS))}
    text = [i for words in lines for i in (BOS, *(ids[w] for w in words if w in ids), EOS)]
    np.save(folder / "ids.npy", np.array(text))
    (folder / "words.json").write_text(json.dumps(known))
    return len(text) - 2 * len(lines), len(known)


def load(work: Work) -> tuple[np.ndarray, list[str]]:
    """The ids (tokens,) and the words that they stand for."""
    ids = np.load(Path(work.folder) / "ids.npy")
    if work.words:
        end = np.searchsorted(np.cumsum(ids >= len(SPECIALS)), work.words)
        ids = np.append(ids[: end + 1], EOS)
    return ids, json.loads((Path(work.folder) / "words.json").read_text())


# Contestants: each gives its seconds, and the vectors in the order of the words.


def regard(work: Work) -> tuple[float, np.ndarray]:
    ids, words = load(work)
    torch.set_num_threads(1)
    if work.device == "cpu":
        keep_freed()  # as the loop does
    config = Word2VecConfig(len(SPECIALS) + len(words), method=work.method)
    torch.manual_seed(work.seed)
    vectors = WordVectors(config).to(work.device)
    counts = np.bincount(ids, minlength=config.vocabulary)
    settings = {"epochs": work.epochs, "seed": work.seed, "device": work.device}
    steps = VectorSteps(config, Array(ids), counts, **settings)
    begin = time.perf_counter()
    if work.threads == 1:
        for step in range(len(steps)):
            steps.advance(vectors, step)
    else:
        with closing(Walk(steps, vectors, 0, len(steps), work.threads)) as walk:
            for _ in walk:
                pass
    learnt = vectors.vectors().cpu().numpy()[len(SPECIALS) :]  # waits for a GPU
    return time.perf_counter() - begin, learnt


def gensim(work: Work) -> tuple[float, np.ndarray]:
    from gensim.models import Word2Vec

    ids, words = load(work)
    spelled = np.array([*SPECIALS, *words], dtype=object)[ids].tolist()
    starts, ends = np.flatnonzero(ids == BOS) + 1, np.flatnonzero(ids == EOS)
    lines = [spelled[start:end] for start, end in zip(starts, ends, strict=True)]
    model = Word2Vec(
        sg=int(work.method == "skip-gram"), sample=1e-4, min_count=1, workers=work.threads,
        seed=work.seed,
    )  # fmt: skip
    model.build_vocab(lines)
    begin = time.perf_counter()
    model.train(lines, total_examples=model.corpus_count, epochs=work.epochs)
    spent = time.perf_counter() - begin
    known = [word for word in words if word in model.wv]
    return spent, model.wv[known]


CONTESTANTS = {"regard": regard, "gensim": gensim}


# Judging: both in the same way.


def similarity(vectors: np.ndarray, places: dict[str, int], file: Path) -> float:
    """Spearman's correlation with the judgements in a file of `word word score`."""
    rows = [line.lower().split() for line in file.read_text().splitlines() if line.strip()]
    known = [(places[a], places[b], float(c)) for a, b, c in rows if a in places and b in places]
    left, right, judged = (np.array(each) for each in zip(*known, strict=True))
    found = (vectors[left] * vectors[right]).sum(1)
    return 100 * float(np.corrcoef(_ranks(found), _ranks(judged))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """1 for the least; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def analogies(vectors: np.ndarray, places: dict[str, int], file: Path) -> float:
    """The share of questions `a b c d` answered with d; those with an unknown word do not count."""
    rows = [line.lower().split() for line in file.read_text().splitlines() if line[:1] != ":"]
    known = np.array([[places[w] for w in row] for row in rows if all(w in places for w in row)])
    right = 0
    for some in np.array_split(known, max(len(known) // 256, 1)):
        a, b, c, d = some.T
        scores = (vectors[b] - vectors[a] + vectors[c]) @ vectors.T
        for given in (a, b, c):
            scores[np.arange(len(some)), given] = -np.inf
        right += np.count_nonzero(scores.argmax(1) == d)
    return 100 * right / len(known)


def judge(vectors: np.ndarray, words: list[str], asked: argparse.Namespace) -> dict[str, float]:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    places = {word: i for i, word in enumerate(words)}
    scores = {file.stem: similarity(unit, places, file) for file in asked.similarity}
    if asked.questions:
        frequent = {word: i for word, i in places.items() if i < asked.frequent}
        scores["analogies"] = analogies(unit[: asked.frequent], frequent, asked.questions)
    return scores


# Running: one contestant in its own process, and both in turn.


def start(name: str, work: Work, tiny: bool) -> dict[str, Any]:
    """One contestant's seconds and, if asked for, vectors."""
    if tiny:
        return enter(name, work)
    command = [sys.executable, __file__, "-", "--contestant", name, json.dumps(asdict(work))]
    environment = {**os.environ, "OMP_NUM_THREADS": str(work.threads)}
    asked = subprocess.run(command, env=environment, capture_output=True, text=True)
    if asked.returncode:
        sys.exit(f"{name} failed:\n{asked.stderr[-3000:]}")
    return json.loads(asked.stdout.splitlines()[-1])


def enter(name: str, work: Work) -> dict[str, Any]:
    seconds, vectors = CONTESTANTS[name](work)
    if not work.judge:
        return {"seconds": seconds}
    file = Path(work.folder) / "vectors.npy"
    np.save(file, vectors)
    return {"seconds": seconds, "vectors": str(file)}


def speeds(names: list[str], asked: argparse.Namespace, folder: str) -> list[dict[str, Any]]:
    """Words a second of each, and the median of the rounds' ratios."""
    rows = []
    print(f"{'':12}threads  {''.join(f'{name:>12}' for name in names)}   ratio (of each round)")
    for method in asked.methods:
        for threads in asked.threads:
            work = Work(folder, method, threads, asked.passes, 1, asked.device, asked.sample)
            words = asked.sample * asked.passes
            found: dict[str, list[float]] = {name: [] for name in names}
            for _ in range(asked.rounds):
                for name in names:
                    found[name].append(words / start(name, work, asked.tiny)["seconds"])
            middle = {name: median(each) for name, each in found.items()}
            row = {"method": method, "threads": threads, **middle}
            told = "".join(f"{each:12,.0f}" for each in middle.values())
            if "gensim" in names:
                pairs = zip(found["regard"], found["gensim"], strict=True)
                ratios = sorted(ours / theirs for ours, theirs in pairs)
                row["ratio"] = median(ratios)
                told += f"{row['ratio']:8.2f} ({' '.join(f'{each:.2f}' for each in ratios)})"
            print(f"{method:12}{threads:7}  {told}", flush=True)
            rows.append(row)
    return rows


def quality(names: list[str], asked: argparse.Namespace, folder: str) -> list[dict[str, Any]]:
    """The scores of each seed's vectors."""
    words = json.loads((Path(folder) / "words.json").read_text())
    rows = []
    for method in asked.methods:
        for seed in range(1, asked.seeds + 1):
            for name in names:
                work = Work(folder, method, asked.threads[-1], asked.epochs, seed, asked.device)
                result = start(name, Work(**{**asdict(work), "judge": True}), asked.tiny)
                scores = judge(np.load(result["vectors"]), words, asked)
                told = "  ".join(f"{what} {score:.1f}" for what, score in scores.items())
                print(f"{method:12}{name:8} seed {seed}: {told}  {result['seconds']:.0f} s")
                sys.stdout.flush()
                rows.append({"method": method, "name": name, "seed": seed, **scores})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path, help="a text, or a text packed by gzip")
    parser.add_argument("--questions", type=Path, help="analogies: four words a line")
    parser.add_argument("--similarity", type=Path, nargs="*", default=[], help="judged pairs")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=1, help="0: speed only")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--least", type=int, default=5)
    parser.add_argument("--sample", type=int, default=2_000_000, help="words to be timed with")
    parser.add_argument("--passes", type=int, default=1, help="over them, to be timed")
    parser.add_argument("--frequent", type=int, default=30_000, help="words analogies are about")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--contestant", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--tiny", action="store_true", help="in this process, by one thread")
    asked = parser.parse_args()
    if asked.tiny:
        asked.threads, asked.rounds, asked.epochs, asked.least = [1], 1, 1, 1
    if asked.contestant:
        name, work = asked.contestant
        print(json.dumps(enter(name, Work(**json.loads(work)))))
        return
    names = ["regard"]
    if asked.device != "cpu":
        asked.threads = asked.threads[-1:]
    elif importlib.util.find_spec("gensim") is None:
        print("gensim is left out: it is not here")
    else:
        names.append("gensim")
    with tempfile.TemporaryDirectory() as folder:
        total, different = prepare(asked.corpus, asked.least, Path(folder))
        asked.sample = min(asked.sample, total)
        print(f"{total:,} words, {different:,} different  [{machine()}]", flush=True)
        timed = speeds(names, asked, folder) if asked.rounds else []
        judged = quality(names, asked, folder) if asked.similarity or asked.questions else []
    load = os.getloadavg()[1]
    print(json.dumps({"machine": machine(), "load": load, "speed": timed, "quality": judged}))


if __name__ == "__main__":
    main()
