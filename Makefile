# Fresh machine to a finished demo or a green test run: nothing is needed but Python 3.11+ and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Cached byte code halves the start of the many processes that tests run.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo serve test test-faults test-fuzz test-dbt quick soak bench lint schemas clean

# An example plan, run with live progress.
demo: $(VENV)/runtime
	@$(BIN)/runwright run examples/etl.yaml
	@echo
	@echo "Try next:"
	@echo "  $(BIN)/runwright show @last                  the run as it is, or with --at 7 as it was"
	@echo "  $(BIN)/runwright logs @last extract          what the step printed, both times"
	@echo "  $(BIN)/runwright verify                      proof that nothing was edited"

# The server, on 127.0.0.1:8484; Ctrl-C stops it.
serve: $(VENV)/server
	@$(BIN)/runwright serve

# Every test on every store, except those of the three suites below.
test: $(VENV)/dev
	RUNWRIGHT_PROFILE=full $(BIN)/python -m pytest -n 3 --dist worksteal -q -m "not dbt" --ignore tests/simulation --ignore tests/system/faults --ignore tests/system/fuzz

# Killed processes, lost databases, full disks, edited logs; and faults at every point of simulated runs.
test-faults: $(VENV)/dev
	RUNWRIGHT_PROFILE=full $(BIN)/python -m pytest -n 3 --dist worksteal -q tests/simulation tests/system/faults

# Generated requests against a live server.
test-fuzz: $(VENV)/dev
	RUNWRIGHT_PROFILE=full $(BIN)/python -m pytest -n 2 --dist worksteal -q tests/system/fuzz

# Steps that run dbt itself: each of its processes needs seconds to start.
test-dbt: $(VENV)/dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -q -m dbt

# Tests that need no other process, in seconds.
quick: $(VENV)/dev
	$(BIN)/python -m pytest -q -n 2 -m "not slow" tests/unit tests/conformance tests/simulation

# The long kills and seeds.
soak: $(VENV)/dev
	RUNWRIGHT_PROFILE=soak RUNWRIGHT_KILLS=200 RUNWRIGHT_REQUIRE=postgres,s3,nats $(BIN)/python -m pytest -q -n 3 --dist worksteal -o faulthandler_timeout=3000

# Speed, as ratios against raw limits and peers measured in the same run; fails below a floor.
bench: $(VENV)/bench
	$(BIN)/python -m bench

# Style, layers, types, names and prose.
PROSE := src docs tests bench examples scripts README.md CHANGELOG.md CONTRIBUTING.md
lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright
	$(BIN)/python scripts/check_prose.py $(PROSE)

# After a change of the catalogue: write the JSON Schemas and the reference page again.
schemas: $(VENV)/dev
	$(BIN)/python scripts/write_reference.py

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
	  { echo "Runwright needs Python 3.11 to 3.13; name one with: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/runtime: $(VENV)/bin/python pyproject.toml requirements/runtime.txt
	$(BIN)/pip install -q --require-hashes -r requirements/runtime.txt
	$(BIN)/pip install -q --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/server: $(VENV)/runtime requirements/server.txt
	$(BIN)/pip install -q --require-hashes -r requirements/server.txt
	@touch $@

$(VENV)/dev: $(VENV)/runtime requirements/dev.txt
	$(BIN)/pip install -q --require-hashes -r requirements/dev.txt
	@touch $@

$(VENV)/bench: $(VENV)/dev requirements/bench.txt
	$(BIN)/pip install -q --require-hashes -r requirements/bench.txt
	@touch $@

clean:
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
