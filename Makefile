# Everything sets itself up: a bare clone and Python 3.11+ are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help test lint demo bench soak fuzz clean

help:
	@echo "make test   set up, then check style, types, imports, and run all tests"
	@echo "make demo   set up, then see a small model learn Python and complete a few lines"
	@echo "make soak   kill training at 100 random moments, cut the power at as many, and learn what takes longer (ten minutes)"
	@echo "make fuzz   feed every reader of files mutated bytes, each for SECONDS (900); FUZZ=name for one"
	@echo "make bench  measure against peers (minutes; see docs/measurements.md)"

# What users run needs only the run-time dependencies; the tests need the rest too.
$(VENV)/run: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Regard needs Python 3.11 or newer; say which with: make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (a minute or two, once) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/dev: $(VENV)/run
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

test: lint
	$(BIN)/pytest -n auto

lint: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --config pyproject.toml

demo: $(VENV)/run
	@$(BIN)/python -P -m regard.demo

soak: $(VENV)/dev
	REGARD_SEEDS=100 $(BIN)/pytest -n auto tests/system/test_survival.py tests/system/test_power_cuts.py \
		tests/system/test_network_disks.py tests/system/test_models_learn.py

# FUZZ='name name' for some targets; KEEP=1 puts what reaches most into tests/fuzz/corpus.
fuzz: $(VENV)/dev
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	$(BIN)/python tests/fuzz/fuzzer.py $(FUZZ) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(KEEP),--keep)

# NANOGPT=folder, on a machine with CUDA, measures a checkout of nanoGPT beside ours.
# TEXT=file measures preparing it; LOOP=file (CUDA) the whole loop on it against its bare step;
# SHAKESPEARE=input.txt (CUDA) trains the character recipe, against nanoGPT if there is one;
# TRANSLATOR=run SENTENCES=test.en translates with a small trained run, against CTranslate2 too;
# COUNTED=train.txt COUNTED_TEST=test.txt counts n-grams, against KenLM (LMPLZ=its lmplz, if built);
# INT8=1 (CUDA) sets int8 weights beside bfloat16 ones;
# WORDS=text [WORDS_MORE='--questions F --similarity F…'] makes word vectors, against gensim.
bench: $(VENV)/dev
	$(BIN)/python bench/transformer.py $(if $(NANOGPT),--nanogpt $(NANOGPT))
	$(BIN)/python bench/decoding.py
	$(BIN)/python bench/cost.py
	$(if $(TEXT),$(BIN)/python bench/prepare.py $(TEXT))
	$(if $(TRANSLATOR)$(COUNTED)$(WORDS),$(BIN)/pip install --quiet -c constraints.txt -e '.[bench]')
	$(if $(COUNTED),$(BIN)/python bench/counting.py $(COUNTED) $(COUNTED_TEST) $(if $(LMPLZ),--lmplz $(LMPLZ)))
	$(if $(WORDS),$(BIN)/python bench/word2vec.py $(WORDS) $(WORDS_MORE))
	$(if $(TRANSLATOR),$(BIN)/python bench/translation.py $(TRANSLATOR) $(SENTENCES))
	$(if $(LOOP),$(BIN)/python bench/loop.py $(LOOP))
	$(if $(INT8),$(BIN)/python bench/int8.py)
	$(if $(SHAKESPEARE),$(BIN)/python bench/shakespeare.py $(SHAKESPEARE) $(if $(NANOGPT),--nanogpt $(NANOGPT)))

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
