PYTHON ?= python3
BIN := .venv/bin
FAST := not slow and not site and not cluster and not browser
# The suite compiles thousands of small programs: without XLA's fusion emitters each takes half of the time or less. Tests
# that compare compiled programs with uncompiled ones turn the emitters on again.
PYTEST := XLA_FLAGS=--xla_cpu_use_fusion_emitters=false $(BIN)/python -m pytest -n 2 --dist loadfile -q

.PHONY: demo test test-all lint typecheck-run mutants fuzz oldest audit upgrade bench docs clean

# The stamp is written last: an installation that was interrupted is done again. Dependency groups need pip 25.1.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[lab,torch,cluster]' --group dev
	touch $@

demo: .venv/installed
	$(BIN)/python -m doublecv.lab.demo

# The fast set. Compiled programs stay in build/, which makes the next run faster; CI starts without them.
test: .venv/installed
	JAX_COMPILATION_CACHE_DIR=$(CURDIR)/build/compiled $(PYTEST) -m '$(FAST)'

test-all: .venv/installed
	$(PYTEST) --durations 20

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/pin.py --check
	$(BIN)/python tools/mutants.py --check

# The fast set with every annotated shape and type checked when a function is called.
typecheck-run: .venv/installed
	DOUBLECV_TYPECHECK=1 $(PYTEST) -m '$(FAST)'

# Break the code in known ways, and check that a fast test fails for each.
mutants: .venv/installed
	$(BIN)/python tools/mutants.py

# Long runs of the property-based tests that try bad input: command lines, data files, run folders, f and q.
fuzz: .venv/installed
	DOUBLECV_FUZZ=3000 $(PYTEST) -k 'fuzz or damage'

# The fast set with the oldest versions that pyproject.toml allows.
oldest:
	$(PYTHON) tools/oldest.py

# Known vulnerabilities of the pinned packages; skipped where no database can be reached.
audit: .venv/installed
	$(BIN)/python tools/audit.py

# The newest versions that pyproject.toml allows.
upgrade: .venv/installed
	$(BIN)/python tools/pin.py

bench: .venv/installed
	$(BIN)/python -m doublecv bench

# A fresh environment: the pages' cells run on code that may have changed.
docs: .venv/installed
	$(BIN)/python -m sphinx --builder html --fresh-env --fail-on-warning --keep-going --quiet --jobs 2 --doctree-dir build/doctrees docs build/docs

clean:
	rm -rf .venv build dist
