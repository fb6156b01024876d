"""Coverage-guided fuzzing of every reader, with atheris: `make fuzz`.

    python tests/fuzz/fuzzer.py [NAME …] --seconds 900

Each target in turn is fuzzed by some processes, which share what they find. An input that makes a
reader do what it should not (see `judging`) is put into build/fuzz/NAME/findings beside what was
seen; one of each sort, until the target is fuzzed again. With --keep, what reaches most is kept in
tests/fuzz/corpus.
"""

import argparse
import hashlib
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve()
WORK = HERE.parents[2] / "build" / "fuzz"
OVER = threading.Event()  # no further process is started
RUNNING: list["subprocess.Popen[bytes]"] = []
LIMITS = ("-max_len=4096", "-timeout=20", "-rss_limit_mb=3000", "-print_final_stats=1", "-reload=1")
SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None
KILLS = ("oom", "tim", "cra")  # how the names of what ended a process begin
INSTRUMENTED = ["regard", "tomllib", "PIL"]


# One process of a target


def fuzz(name: str, seconds: int, seed: int) -> None:
    """Fuzz one target in this process, which ends with it."""
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        import judging
    import mutating
    import torch

    torch.set_num_threads(1)
    rng = random.Random(seed)
    seen: set[str] = set()

    def one(data: bytes) -> None:
        try:
            judging.judge(name, data)
        except judging.FindingError as finding:
            key = re.sub(r"[\d.]+ ", "", finding.what.partition(":")[0]) + finding.place
            if key not in seen:
                seen.add(key)
                note(name, data, finding)

    def mutate(data: bytes, longest: int, seed: int) -> bytes:
        other = mutating.changed(name, data, rng) if rng.random() < 0.5 else None
        return other if other and len(other) <= longest else atheris.Mutate(data, longest)

    folder = WORK / name
    options = [
        f"-max_total_time={seconds}",
        f"-seed={seed}",
        f"-artifact_prefix={folder}/findings/",
    ]
    atheris.Setup(
        [sys.argv[0], *LIMITS, *options, str(folder / "corpus")], one, custom_mutator=mutate
    )
    atheris.Fuzz()


def note(name: str, data: bytes, finding: Exception) -> None:
    """Put a finding where it is looked for; other processes may have it too."""
    key = hashlib.sha256(f"{finding}".encode()).hexdigest()[:12]
    path = WORK / name / "findings" / key
    told = "".join(traceback.format_exception(finding))
    path.with_suffix(".txt").write_text(told, encoding="utf-8", errors="backslashreplace")
    path.write_bytes(data)


# All targets in turn


def campaign(name: str, seconds: int, workers: int) -> str:
    """Fuzz one target with some processes; a line about it."""
    import corpus
    import seeds

    folder = WORK / name
    for part in ("corpus", "findings"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.log"), *folder.glob("findings/*")):
        old.unlink()
    kept = corpus.load(name)
    for data in (*seeds.seeds(name), *kept["mended"], *kept["found"]):
        (folder / "corpus" / hashlib.sha1(data).hexdigest()).write_bytes(data)
    begun, used = time.monotonic(), _used()
    end = begun + seconds
    with ThreadPoolExecutor(workers) as pool:
        try:
            list(pool.map(lambda number: insist(name, end, number), range(workers)))
        except BaseException:
            OVER.set()
            for process in RUNNING:
                process.terminate()
            raise
    wall, busy = time.monotonic() - begun, _used() - used
    logs = [log.read_text(errors="replace") for log in folder.glob("*.log")]
    return summary(name, wall, busy, logs)


def insist(name: str, end: float, number: int) -> None:
    """Fuzz with one process up to a time, and with another where an input ends that one.

    It did if that took too long or too much memory, and is among the findings then.
    """
    while (left := round(end - time.monotonic())) > 5 and not OVER.is_set():
        command = [sys.executable, str(HERE), name, f"--seconds={left}", f"--process={number}"]
        with TemporaryDirectory(prefix="fuzz-", dir=SCRATCH) as scratch:
            settings = {**os.environ, "FUZZ_FOLDER": scratch}
            with (WORK / name / f"{number}.log").open("ab") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, env=settings)
                RUNNING.append(process)
                code = process.wait()
        if code == 1:  # Python's, not the fuzzer's
            raise RuntimeError(f"the fuzzer does not start; see {WORK / name / f'{number}.log'}")
        OVER.wait(1)  # perhaps it ended because somebody ends all


def summary(name: str, wall: float, busy: float, logs: list[str]) -> str:
    """What a campaign came to."""
    runs = sum(int(n) for log in logs for n in re.findall(r"executed_units: +(\d+)", log))
    last = [found[-1] for log in logs if (found := re.findall(r"cov: (\d+) ft: (\d+)", log))]
    covered, features = (max((int(one[i]) for one in last), default=0) for i in (0, 1))
    found = len(list((WORK / name / "findings").glob("*.txt")))
    killed = [path for path in (WORK / name / "findings").iterdir() if path.name[:3] in KILLS]
    return (
        f"{name}: {wall:.0f} s, {busy:.0f} s of computing, {runs:,} inputs, coverage {covered:,}, "
        f"features {features:,}, {found} findings, {len(killed)} hangs or too much memory"
    )


def _used() -> float:
    """Seconds of computing that processes which ended have taken."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def keep(name: str) -> None:
    """Choose from all that was found, and put it into the repository."""
    import corpus

    mended = corpus.load(name)["mended"]
    inputs = [path.read_bytes() for path in (WORK / name / "corpus").iterdir()]
    corpus.save(name, {"mended": mended, "found": corpus.chosen(name, inputs)})


def mended(name: str, paths: list[str]) -> None:
    """Put inputs that a reader failed at, and no longer does, into the repository."""
    import corpus

    kept = corpus.load(name)
    kept["mended"] += [Path(path).read_bytes() for path in paths]
    corpus.save(name, kept)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz the readers of files.")
    parser.add_argument("names", nargs="*", help="targets; all if none is named")
    parser.add_argument("--seconds", type=int, default=900, help="for each target")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", action="store_true", help="keep the corpus in the repository")
    parser.add_argument("--mended", nargs="+", help="findings of one target, to be read in tests")
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.process is not None:
        fuzz(asked.names[0], asked.seconds, asked.process + 1)
    import targets

    if strange := [name for name in asked.names if name not in targets.TARGETS]:
        sys.exit(f"no target is called {strange[0]}; known: {', '.join(targets.TARGETS)}")
    if asked.mended:
        mended(asked.names[0], asked.mended)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    names = asked.names or list(targets.TARGETS)
    for name in names:
        print(campaign(name, asked.seconds, asked.processes), flush=True)
        if asked.keep:
            keep(name)
    if found := [name for name in names if any((WORK / name / "findings").iterdir())]:
        sys.exit(f"look into {', '.join(str(WORK / name / 'findings') for name in found)}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
