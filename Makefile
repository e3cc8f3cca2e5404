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
	@echo 'make test       lint, and the tests, in the same environment'
	@echo 'make test-slow  the tests that take minutes each'
	@echo 'make fits       compile the pod configs for TPUs, write launch/FITS.md'
	@echo 'make lint       ruff alone'
	@echo 'make clean      remove $(VENV); runs are kept'

train: $(VENV)/base
	$(RUN) -m jaxrl_llm.train --config=configs/countdown.py $(ARGS)

test: lint
	JAX_PLATFORMS=cpu $(RUN) -m pytest -n 2 --dist loadfile \
	  --no-loadscope-reorder $(ARGS)

test-slow: $(VENV)/test
	JAX_PLATFORMS=cpu $(RUN) -m pytest -m slow $(ARGS)

fits: $(VENV)/base
	$(PIP) install --no-compile -c constraints.txt -e '.[aot]'
	JAX_PLATFORMS=cpu $(RUN) -m launch.fits

lint: $(VENV)/test
	$(RUN) -m ruff check .

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

$(VENV)/test: $(VENV)/base
	$(PIP) install --no-compile -c constraints.txt -e '.[test]'
	@touch $@

.PHONY: help train test test-slow fits lint clean
