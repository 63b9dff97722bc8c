PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint bench docs clean

# The stamp is written last: an installation that was cut off is done again.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test,docs]'
	touch $@

demo: .venv/installed
	$(BIN)/python -m doublecv.lab.demo

test: .venv/installed
	$(BIN)/python -m pytest -n 2 -q

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/installed
	$(BIN)/python -m doublecv.lab.bench.command

# A fresh environment: the pages' cells run on code that may have changed.
docs: .venv/installed
	$(BIN)/python -m sphinx --builder html --fresh-env --fail-on-warning --keep-going --quiet --jobs 2 --doctree-dir build/doctrees docs build/docs

clean:
	rm -rf .venv build dist
