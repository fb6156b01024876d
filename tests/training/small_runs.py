"""A run of a few kilobytes with everything that a run has."""

from dataclasses import replace
from pathlib import Path

from regard.families.settings import ModelSettings, Settings
from regard.models.construction import build
from regard.runs import stored_run
from regard.storage.event_log import Log
from regard.text.learning import learn

TEXT = "some letters to learn"


def small_run(folder: Path) -> None:
    tiny = {"width": 16, "heads": 2, "hidden": 32, "context": 24, "layers": 1}
    tokenizer = learn("char", [TEXT + "\n "])
    decided = Settings().changed({"training": {"context": 24, "tokens_per_step": 96}}, "test")
    settings = replace(decided, model=ModelSettings("gpt2-tiny", tiny))
    config = stored_run.config_for(settings.model, tokenizer, tokenizer)
    stored_run.write_run(
        folder, settings, config, [tokenizer], "digest", {"training": {"steps": 3}}
    )
    stored_run.write_weights(folder, dict(build(config).named_parameters()))
    log = Log(folder)
    for step in range(3):
        log.write({"event": "step", "step": step, "loss": 2.5 / (step + 1)})
    log.close()
