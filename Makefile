# Needs Python 3.11 or later and make, nothing else.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --quiet --disable-pip-version-check
# Images of containers like to set it; then each of the tests' many processes
# would compile 2,000 modules again, seconds every time.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo 'make train      set up $(VENV) and run configs/countdown.py (minutes);'
	@echo "                fields in ARGS, as in make train ARGS='--config.seed=1'"
	@echo 'make real       set up $(VENV) with a real model, SmolLM2-135M, and train it by'
	@echo '                configs/real/smollm2.py; then export it to runs/smollm2/model'
	@echo 'make test       lint, and the tests, in the same environment'
	@echo 'make test-core  the tests but those that start runs or buckets'
	@echo 'make test-quick pure stages alone: a minute'
	@echo 'make test-cpus  the numeric tests as older processors run them'
	@echo 'make test-slow  the tests that take minutes each'
	@echo 'make test-browser  the page of a run in Chromium, which must be installed'
	@echo 'make fits       compile the pod configs for TPUs, write launch/FITS.md'
	@echo 'make docs       write the documentation to build/docs/index.html'
	@echo 'make lint       ruff, and the types of the public functions'
	@echo 'make clean      remove $(VENV); runs are kept'

train: $(VENV)/base
	$(RUN) -m jaxrl_llm.train --config=configs/countdown.py $(ARGS)

# A run that was cut off goes on. The model is exported anew each time.
REAL := runs/smollm2

real: $(VENV)/real
	$(RUN) -m jaxrl_llm.train --config=configs/real/smollm2.py \
	  --config.workdir=$(REAL) $(ARGS)
	rm -rf $(REAL)/model
	$(RUN) -m jaxrl_llm.export --workdir=$(REAL) --out=$(REAL)/model

PYTEST := JAX_PLATFORMS=cpu $(RUN) -m pytest -n auto --dist loadfile \
  --no-loadscope-reorder

test: lint
	$(PYTEST) $(ARGS)

test-core: lint
	$(PYTEST) -m 'not slow and not processes' $(ARGS)

# Functions of arrays, configs, tasks and rewards: what most changes touch.
# Importing TRL takes as long as many tests.
QUICK := $(addprefix tests/, answers config curriculum examples ops rewards selection \
  tasks learner/advantages_test.py loop/batches_test.py \
  learner/optimizer_test.py loop/rounds_test.py imports_test.py \
  loop/rollout_test.py base/schedules_test.py base/tokenizer_test.py)

test-quick: lint
	$(PYTEST) -m 'not slow and not long and not processes' \
	  --ignore=tests/ops/trl_test.py $(QUICK) $(ARGS)

# Programs that compute numbers. XLA and PyTorch order their sums by the vector
# instructions of the processor; these limits make them do as older ones do.
NUMERIC := $(addprefix tests/, evaluation learner models ops sampling sharding \
  devices_test.py evaluate_test.py export_test.py peers_faults_test.py \
  real_models_test.py seams_test.py stage_facts_test.py take_step_test.py \
  train_test.py truncation_test.py prepare/start_weights_test.py)

test-cpus: $(VENV)/test
	XLA_FLAGS=--xla_cpu_max_isa=SSE4_2 ATEN_CPU_CAPABILITY=default \
	  $(PYTEST) $(NUMERIC) $(ARGS)
	XLA_FLAGS=--xla_cpu_max_isa=AVX2 ATEN_CPU_CAPABILITY=avx2 \
	  $(PYTEST) $(NUMERIC) $(ARGS)
	$(PYTEST) $(NUMERIC) $(ARGS)

test-slow: $(VENV)/test
	JAX_PLATFORMS=cpu $(RUN) -m pytest -m slow $(ARGS)

# apt install chromium chromium-driver
test-browser: $(VENV)/test
	@command -v chromium > /dev/null && command -v chromedriver > /dev/null || { \
	  echo 'chromium and chromedriver are needed' >&2; exit 1; }
	JAX_PLATFORMS=cpu $(RUN) -m pytest -m browser tests/evaluation $(ARGS)

fits: $(VENV)/base
	$(PIP) install --no-compile -c constraints.txt -e '.[aot]'
	JAX_PLATFORMS=cpu $(RUN) -m launch.fits $(ARGS)

# The variable leaves out an announcement about a later mkdocs.
docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict --quiet
	@echo 'build/docs/index.html; its search needs a server:' \
	  '$(RUN) -m http.server --directory build/docs'

lint: $(VENV)/test
	$(RUN) -m ruff check .
	$(RUN) -m mypy

clean:
	rm -rf $(VENV)

# What is installed is noted by an empty file; it is made again when the
# requirements change. Python compiles a module when it is first imported:
# compiling them all here would double the time.
REQUIREMENTS := setup.py pyproject.toml constraints.txt

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "Python 3.11 or later is needed: give one as make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/base: $(REQUIREMENTS) | $(VENV)/bin/python
	$(PIP) install --no-compile -c constraints.txt -e .
	@touch $@

$(VENV)/real: $(VENV)/base configs/real/requirements.txt
	$(PIP) install --no-compile -c constraints.txt -e '.[gguf]'
	$(PIP) install --no-compile --no-deps --only-binary :all: --require-hashes \
	  -r configs/real/requirements.txt
	@touch $@

$(VENV)/docs: $(VENV)/base
	$(PIP) install --no-compile -c constraints.txt -e '.[docs]'
	@touch $@

$(VENV)/test: $(VENV)/base
	$(PIP) install --no-compile -c constraints.txt -e '.[test]'
	@touch $@

.PHONY: help train real test test-core test-quick test-cpus test-slow \
  test-browser fits docs lint clean
