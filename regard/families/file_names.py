"""Names of what stands in a run's folder, besides its log, its lock and its checkpoints."""

RUN, WEIGHTS = "run.toml", "model.safetensors"
TOKENIZER, SOURCE_TOKENIZER = "tokenizer.json", "source_tokenizer.json"
