"""`regard arpa`: n-gram models to and from the format of KenLM and SRILM."""

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from rich.console import Console
from rich.text import Text

from regard.commands.arguments import check_writable
from regard.data.readers.files import expanded
from regard.errors import RegardError
from regard.families.settings import ModelSettings, Settings
from regard.interchange.arpa import config_of, read_arpa, table_of, tensors_of, write_arpa
from regard.runs.run_folder import is_folder
from regard.runs.stored_run import open_run, write_run, write_weights
from regard.storage import building
from regard.storage.event_log import Log
from regard.text.specials import BOS, EOS, SPECIALS, UNK
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import Vocabulary
from regard.training.settings import DataSettings, TokenizerSettings, TrainingSettings

UNHEARD = -100.0 * math.log(10)  # of unknown words, where a file has nothing for them, as KenLM


@dataclass(frozen=True)
class Arpa:
    """Write an n-gram run as an ARPA file, or make a run of such a file.

    $ regard arpa runs/5 model.arpa.gz        for KenLM and SRILM
    $ regard arpa model.arpa runs/theirs      then evaluate, score, generate as ever
    """

    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SOURCE")]
    """The folder of an n-gram run, or an ARPA file, packed by gzip or not."""
    target: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TARGET")]
    """The file to write (.gz packs it), or the folder of a new run."""

    def run(self, console: Console) -> None:
        source, target = expanded(self.source), expanded(self.target)
        said = _exported(source, target) if is_folder(source) else _imported(source, target)
        console.print(Text(said), soft_wrap=True)


def _exported(folder: Path, path: Path) -> str:
    run = open_run(folder)
    table = table_of(run.module, folder)
    check_writable(path, replaced=True)
    write_arpa(table, run.tokenizer.vocabulary.tokens, path)
    return f"wrote {path}: {table.counts()}"


def _imported(path: Path, folder: Path) -> str:
    if os.path.lexists(folder):
        raise RegardError(f"{folder} is already there; name a folder that is not")
    found, words = read_arpa(path)
    ids, tokens = numbered(words)
    table = found.renumbered(ids, len(tokens))
    if table.begin != BOS:
        raise RegardError(f"{path} has no <s>, with which every text begins")
    if not np.isfinite(table.levels[0].logprobs[EOS]):
        raise RegardError(f"{path} has no </s>, with which every text ends")
    single = table.levels[0].logprobs
    if not np.isfinite(single[UNK]):
        single[UNK] = UNHEARD
    tokenizer = Tokenizer(Vocabulary("word", tokens, tokenised=True))
    config = config_of(table, len(tokens))
    settings = Settings(
        DataSettings(lines="yes", held_out=0.0),
        replace(TokenizerSettings(), kind="word", tokenised="yes", vocabulary=len(tokens)),
        ModelSettings("ngram", {"order": table.order}),
        training=replace(TrainingSettings(), steps=table.order, device="cpu"),
    )
    try:
        with building(folder) as partial:  # there whole or not at all
            write_run(partial, settings, config, [tokenizer])
            write_weights(partial, tensors_of(table))
            log = Log(partial)
            place = {"step": table.order, "time": 0.0}
            log.write({"event": "counted", **place, "message": f"{path}: {table.counts()}"})
            log.write({"event": "end", **place, "reason": "finished"})
            log.close()
    except OSError as error:
        raise RegardError(f"cannot write {folder}: {error.strerror or error}") from None
    return f"made {folder}: {table.counts()}"


def numbered(words: list[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """The ids (words,) that an ARPA file's words get here, and the vocabulary they stand in."""
    known = {word: place for place, word in enumerate(SPECIALS)}
    if "<unk>" not in words:
        known["<UNK>"] = UNK  # as SRILM may have it
    tokens = [*SPECIALS, *(word for word in words if word not in known)]
    places = {word: place for place, word in enumerate(tokens)} | known
    return np.array([places[word] for word in words], np.int64), tuple(tokens)
