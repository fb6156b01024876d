"""Counting n-grams against KenLM: time to build, speed of look-up, perplexities, single scores.

    python bench/counting.py wikitext-2/train.txt wikitext-2/test.txt --lmplz kenlm/bin/lmplz

Words stand between blanks, empty lines are kept, and `<unk>` in the text is a word like any other
(lmplz refuses it, so all contestants read another spelling). With lmplz, its `query` and
`build_binary` are looked for beside it; with the kenlm package installed, that is asked too. All
run in turn; ours in this process, so that Python's start is not counted; KenLM's programs may use
all cores.
"""

import argparse
import gzip
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from itertools import count
from pathlib import Path

import numpy as np
from measure import machine, race

from regard.interchange.arpa import read_arpa, write_arpa
from regard.models.counting.estimate import Table, estimate

UNKNOWN, BEGIN, END = 0, 1, 2
SPECIALS = (b"<unk>", b"<s>", b"</s>")
RESPELLED = b"UNKTOK"


def words_of(path: Path) -> list[bytes]:
    """All words of a text, <s> and </s> around each line."""
    text = path.read_bytes().replace(b"<unk>", RESPELLED)
    return (b"<s> " + text.removesuffix(b"\n").replace(b"\n", b" </s> <s> ") + b" </s>").split()


def read(path: Path) -> tuple[np.ndarray, list[str]]:
    """A text as ids (words,), and its words by id."""
    ids: defaultdict[bytes, int] = defaultdict(count().__next__)
    for word in SPECIALS:
        ids[word]
    words = words_of(path)
    found = np.fromiter(map(ids.__getitem__, words), np.int64, len(words))
    return found, [word.decode() for word in ids]


def encode(path: Path, words: list[str]) -> np.ndarray:
    ids = {word.encode(): number for number, word in enumerate(words)}
    return np.array([ids.get(word, UNKNOWN) for word in words_of(path)])


def write_arrays(table: Table, folder: Path) -> None:
    for n, level in enumerate(table.levels, 1):
        for name in ("keys", "logprobs", "backoffs"):
            getattr(level, name).tofile(folder / f"{name}-{n}.bin")


def building(corpus: Path, folder: Path, order: int, lmplz: str, rounds: int) -> None:
    """Time from text to model, ours as arrays to map and as ARPA, KenLM's as ARPA."""
    stages: defaultdict[str, list[float]] = defaultdict(list)

    def ours(arpa: bool) -> None:
        clock = [time.perf_counter()]
        ids, words = read(corpus)
        clock.append(time.perf_counter())
        table = estimate(ids, order, len(words), BEGIN)
        clock.append(time.perf_counter())
        if arpa:
            write_arpa(table, words, folder / "ours.arpa")
        else:
            write_arrays(table, folder)
        clock.append(time.perf_counter())
        parts = ("reading", "counting and smoothing", "writing ARPA" if arpa else "writing arrays")
        for part, seconds in zip(parts, np.diff(clock), strict=True):
            stages[part].append(float(seconds))

    contestants = {"Regard, arrays": lambda: ours(False), "Regard, ARPA": lambda: ours(True)}
    if lmplz:
        respelled = folder / "corpus.txt"
        respelled.write_bytes(corpus.read_bytes().replace(b"<unk>", RESPELLED))
        command = [lmplz, "-o", str(order), "-S", "2G", "-T", f"{folder}/", "--text", respelled]
        command += ["--arpa", folder / "kenlm.arpa"]
        contestants["lmplz"] = lambda: subprocess.run(command, check=True, capture_output=True)
    found = race(contestants, rounds, warmup=1)
    peer = found["lmplz"].seconds if lmplz else math.nan
    for name, timing in found.items():
        print(
            f"building order {order}, {name}: {timing.seconds:.2f} s (± {timing.spread:.0%}), "
            f"{timing.seconds / peer:.2f} of lmplz"
        )
    print("  " + ", ".join(f"{part} {np.median(times):.2f} s" for part, times in stages.items()))


def looking_up(table: Table, ids: np.ndarray, test: Path, folder: Path, lmplz: str) -> None:
    """Tokens a second, </s> among them and <s> not."""
    tokens = int(np.count_nonzero(ids != BEGIN))
    contestants = {"Regard": lambda: table.logprobs(ids)}
    lines = test.read_text(encoding="utf-8").replace("<unk>", RESPELLED.decode()).splitlines()
    try:
        import kenlm

        model = kenlm.Model(str(folder / "ours.arpa"))
        contestants["kenlm from Python"] = lambda: [list(model.full_scores(line)) for line in lines]
    except ImportError:
        print("the kenlm package is not installed, so it is not asked")
    for name, timing in race(contestants, 5).items():
        print(f"looking up, {name}: {tokens / timing.seconds / 1e6:.2f} M tokens/s")
    if lmplz:
        query_of_kenlm(Path(lmplz).parent, lines, folder, tokens)


def query_of_kenlm(programs: Path, lines: list[str], folder: Path, tokens: int) -> None:
    """Its own program, less its start and loading: a text of 21 times the lines, less one of 1."""
    model = folder / "kenlm.binary"
    made = [programs / "build_binary", "probing", folder / "ours.arpa", model]
    subprocess.run(made, check=True, capture_output=True)
    seconds = []
    for times in (1, 21):
        text = ("\n".join(lines) + "\n").encode() * times
        best = math.inf
        for _ in range(3):
            begin = time.perf_counter()
            command = [programs / "query", "-v", "summary", model]
            subprocess.run(command, input=text, check=True, capture_output=True)
            best = min(best, time.perf_counter() - begin)
        seconds.append(best)
    print(
        "looking up, KenLM's query (reading text too): "
        f"{20 * tokens / (seconds[1] - seconds[0]) / 1e6:.2f} M tokens/s"
    )


def scores(table: Table, ids: np.ndarray, path: Path) -> None:
    """Each token's score, and the length of the n-gram that decided, against given ones."""
    with gzip.open(path, "rb") as file:
        wanted = re.findall(rb"=\d+ (\d+) (-?[\d.e-]+)(?:\t|\s*$)", file.read())
    lengths = np.array([int(length) for length, _ in wanted])
    logs = np.array([float(log) for _, log in wanted])
    found, decided = (values[ids != BEGIN] for values in table.logprobs(ids))
    if len(found) != len(logs):
        raise SystemExit(f"{path} has {len(logs):,} scores, the text {len(found):,} tokens")
    apart = np.abs(found / math.log(10) - logs)
    print(
        f"{len(logs):,} scores: at most {apart.max():.1e} (log10) apart, {np.mean(apart):.1e} on "
        f"average; {np.count_nonzero(lengths != decided)} decided by n-grams of another length"
    )


def in_chunks(stored: Path, order: int, vocabulary: int, chunks: int) -> str:
    """Count in this process, in so many chunks; time, and memory that no file stands for."""
    source = np.memmap(stored, np.int64, "r")
    size = -(-len(source) // chunks)
    before = peak = held()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, held())

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin = time.perf_counter()
    estimate(source, order, vocabulary, BEGIN, chunk=size)
    seconds = time.perf_counter() - begin
    done.set()
    watcher.join()
    return f"in {chunks} chunks: {seconds:.2f} s, {(peak - before) / 1024:.0f} MiB of memory"


def held() -> int:
    """KiB of this process's memory that is not mapped from files."""
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--lmplz", default="", help="KenLM's program, for a race")
    parser.add_argument("--scores", type=Path, help="KenLM's scores of the test text, gzipped")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chunks", type=int, nargs=2, default=[], help=argparse.SUPPRESS)
    parser.add_argument("--tiny", action="store_true", help="all in this process, and once")
    asked = parser.parse_args()
    if asked.tiny:
        asked.rounds = 1
    if asked.chunks:
        print(in_chunks(asked.corpus, asked.order, *asked.chunks))
        return
    print(f"{machine()}, {os.cpu_count()} cores, numpy {np.__version__}")
    ids, words = read(asked.corpus)
    test = encode(asked.test, words)
    print(f"{len(ids):,} tokens of {len(words):,} kinds; test {len(test):,}")
    for order in sorted({2, 3, 4, 5, 6, asked.order}):
        table = estimate(ids, order, len(words), BEGIN)
        found = table.logprobs(test)[0][test != BEGIN]
        print(f"order {order}: perplexity {math.exp(-found.mean()):.2f}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        building(asked.corpus, folder, asked.order, asked.lmplz, asked.rounds)
        begin = time.perf_counter()
        again, _ = read_arpa(folder / "ours.arpa")
        print(f"reading ARPA: {time.perf_counter() - begin:.2f} s")
        table = estimate(ids, asked.order, len(words), BEGIN)
        real = test != BEGIN
        apart = np.abs(again.logprobs(test)[0][real] - table.logprobs(test)[0][real])
        print(f"  after which scores are at most {apart.max() / math.log(10):.1e} (log10) apart")
        looking_up(table, test, asked.test, folder, asked.lmplz)
        ids.tofile(folder / "ids.bin")
        for chunks in (1, 4, 16, 64):
            if asked.tiny:
                print(in_chunks(folder / "ids.bin", asked.order, len(words), chunks))
                continue
            command = [sys.executable, __file__, folder / "ids.bin", asked.test]
            command += ["--order", str(asked.order), "--chunks", str(len(words)), str(chunks)]
            subprocess.run(command, check=True)
    if asked.scores:
        scores(table, test, asked.scores)


if __name__ == "__main__":
    main()
