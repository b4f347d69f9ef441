# Every setting of the server is a make variable: make serve MODEL=Qwen/Qwen3-VL-2B-Instruct SHIM_PORT=9100
# (make hands variables of its command line and of the environment on by itself).

PYTHON ?= $(shell for python in python3.11 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help install perf-tools serve test test-unit test-long fuzz bench bench-mixed bench-render bench-serve lint format train evaluate clean

help: ## what there is (this text)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-27s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\nSettings (make variable, environment variable, or flag of triton-renderer serve), with defaults:\n'
	@$(or $(PYTHON),python3) -m triton_renderer.launcher.describe

install: $(VENV)/.installed ## create the environment and get the Triton runtime
	@$(BIN)/triton-renderer install

serve: install ## start Triton and the shim; Ctrl-C ends both
	@$(BIN)/triton-renderer serve

test: perf-tools ## all tests but the long ones
	$(BIN)/python -m pytest tests -m "not long"

test-unit: $(VENV)/.installed-dev ## the tests that need no Triton
	$(BIN)/python -m pytest tests/unit -m "not long"

test-long: perf-tools ## the tests that take minutes each
	$(BIN)/python -m pytest tests -m long -rP

perf-tools: $(VENV)/.installed-dev ## get perf_analyzer; run it with: .venv/bin/triton-renderer perf-analyzer -- ...
	@$(BIN)/triton-renderer install --perf-analyzer

fuzz: $(VENV)/.installed-fuzz ## 5,000 random requests against a real server
	$(BIN)/python -m tests.fuzz

bench-render: install ## render and derender beside a reference: make bench-render REFERENCE_URL=... MODEL=folder
	@test -n "$(REFERENCE_URL)" -a -n "$(MODEL)" || { echo "error: give REFERENCE_URL=http://... of a reference server, \
		and MODEL=folder that it serves" >&2; exit 1; }
	$(BIN)/python -m client.perf.render --reference-url "$(REFERENCE_URL)" --model "$(MODEL)"

bench-serve: install ## streamed chats beside vLLM: make bench-serve REFERENCE_VENV=folder MODEL=folder [ARGS=--pictures]
	@test -n "$(REFERENCE_VENV)" -a -n "$(MODEL)" || { echo "error: give REFERENCE_VENV=folder of an environment with vllm, \
		and MODEL=folder" >&2; exit 1; }
	$(BIN)/python -m client.perf.serve --reference-venv "$(REFERENCE_VENV)" --model "$(MODEL)" $(ARGS)

bench: install ## what Triton and the shim cost, beside the engine in process and transformers: make bench MODEL=smollm2
	$(BIN)/python -m client.perf.layers $(if $(MODEL),--model "$(MODEL)") $(ARGS)

bench-mixed: install ## how long a prompt of 4,000 tokens stops 16 streams: make bench-mixed MODEL=smollm2
	$(BIN)/python -m client.perf.mixed $(if $(MODEL),--model "$(MODEL)") $(ARGS)

lint: $(VENV)/.installed-dev ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev ## format the code
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

train: $(VENV)/.installed ## train the bundled model anew
	$(BIN)/python -m training.train

evaluate: $(VENV)/.installed ## measure the bundled model on unseen pictures
	$(BIN)/python -m training.evaluate

clean: ## remove the environment and everything that was built
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The stamps are newer than the pins as long as these are installed, so that a second start runs no pip.
$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt without-dependencies.txt
	$(BIN)/python -m pip install --constraint constraints.txt --editable .
	$(BIN)/python -m pip install --no-deps --requirement without-dependencies.txt
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[dev]'
	@touch $@

$(VENV)/.installed-fuzz: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[fuzz]'
	@touch $@

$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 is needed, and neither python3.11 nor python3 is one:" \
		"install it, or name it with PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m triton_renderer.launcher.interpreter
	$(PYTHON) -m venv $(VENV)
	@touch $@
