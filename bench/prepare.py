"""Preparing a corpus: tokenizer training and encoding, MB/s and peak memory, also of ten times it.

    python bench/prepare.py books/train.txt.gz

Each figure comes from a process of its own. Ten times the data are ten copies with a different
first line each; they are other documents, so nothing is served from a cache.
"""

import argparse
import gzip
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def prepared(files: list[str], vocabulary: int, cache: str) -> dict[str, float]:
    """Prepare some files in this process; seconds of each stage, and peak memory in bytes."""
    from regard.data.readers.texts import gather
    from regard.data.token_files import prepare
    from regard.families.data.vocabularies import LEARN_FROM
    from regard.text.learning import learn

    resting = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    clock = [time.perf_counter()]
    texts = gather(files)
    clock.append(time.perf_counter())
    tokenizer = learn("bpe", texts.texts("train", LEARN_FROM), vocabulary)
    clock.append(time.perf_counter())
    parts = prepare(texts, tokenizer, cache=Path(cache))
    clock.append(time.perf_counter())
    return {
        "bytes": texts.bytes,
        "tokens": sum(len(tokens) for tokens in parts.values()),
        "reading": clock[1] - clock[0],
        "learning": clock[2] - clock[1],
        "encoding": clock[3] - clock[2],
        "resting": resting,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def in_a_process(files: list[str], vocabulary: int, cache: Path, tiny: bool) -> dict[str, float]:
    if tiny:
        return prepared(files, vocabulary, str(cache))
    command = [sys.executable, __file__, "--worker", str(cache), "--vocabulary", str(vocabulary)]
    asked = subprocess.run([*command, *files], capture_output=True, text=True, check=True)
    return json.loads(asked.stdout)


def report(title: str, found: dict[str, float]) -> None:
    megabytes = found["bytes"] / 1e6
    total = found["reading"] + found["learning"] + found["encoding"]
    print(
        f"{title}: {megabytes:.0f} MB, {found['tokens'] / 1e6:.1f}M tokens; taking stock "
        f"{found['reading']:.1f} s, learning {found['learning']:.1f} s, encoding "
        f"{found['encoding']:.1f} s ({megabytes / found['encoding']:.1f} MB/s); together "
        f"{megabytes / total:.1f} MB/s; peak {found['peak'] / 1e6:.0f} MB, of which "
        f"{found['resting'] / 1e6:.0f} MB before any data"
    )


def copies(path: Path, count: int, folder: Path) -> list[str]:
    names = []
    for number in range(count):
        name = folder / f"copy-{number}.txt"
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rb") as read, name.open("wb") as write:
            write.write(f"copy {number}\n".encode())
            while block := read.read(1 << 22):
                write.write(block)
        names.append(str(name))
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--vocabulary", type=int, default=32768)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--tiny", action="store_true", help="all in this process")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        print(json.dumps(prepared(asked.files, asked.vocabulary, asked.worker)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report("once", in_a_process(asked.files, asked.vocabulary, folder / "cache", asked.tiny))
        many = copies(Path(asked.files[0]), asked.times, folder)
        report(
            f"{asked.times} times",
            in_a_process(many, asked.vocabulary, folder / "cache", asked.tiny),
        )


if __name__ == "__main__":
    main()
