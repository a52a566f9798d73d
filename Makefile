# Two commands do everything: `make demo` and `make test`. Each sets up what it needs; all are safe to repeat.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test test-quick test-all test-by-hand pages wheel check bench docs lock clean

setup: .venv/ready
	@echo 'set up. Next: make demo (plans, trains, writes text), or make test-quick while you change something'

.venv/ready: requirements.lock pyproject.toml
	$(PYTHON) -c "import sys; assert (3, 11) <= sys.version_info < (3, 14), f'plimsoll needs Python 3.11 to 3.13, and this is {sys.version}: set PYTHON=python3.11'"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch .venv/ready

# About 100 MiB above the smallest budget: the planner has to choose, and compares several plans.
demo: .venv/ready
	$(BIN)/plimsoll train tales --memory 384MiB --within 45s --log-every 100 --run runs/demo
	$(BIN)/plimsoll sample runs/demo --tokens 160 --seed 1
	$(BIN)/plimsoll report runs/demo
	@echo "next: open runs/demo/report.html; train on a text of your own with"
	@echo "  $(BIN)/plimsoll train stories --dataset-id my-text.txt --memory 1GiB --run runs/mine"
	@echo "and see docs/first-hour.md for the rest"

# `test` is for before every commit, `test-quick` for while one works. `test-all` is `test`, then what that leaves
# out, and every property again with five times the examples. CONTRIBUTING.md says what is left out, and why.
# Without Python's compiled files every process of the tests compiles every test again: eight CPU seconds of sixteen.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest --numprocesses logical --maxprocesses 4 --dist worksteal --durations 15 --durations-min 5

test: .venv/ready
	$(PYTEST) -m 'not slow'
	@echo 'passed. Next: make check (ruff and types); make test-all has processes, devices, kills and every other case'

test-quick: .venv/ready
	$(PYTEST) -m quick
	@echo 'passed, what is quick of it. Next: make test'

test-all: test
	$(PYTEST) -m '(slow or hypothesis) and not by_hand' --hypothesis-profile thorough
	@echo 'passed, all but make test-by-hand'

# Whole programs of a minute and more each, and dearer proofs: before a release, and after a change of what they go through.
test-by-hand: .venv/ready
	$(PYTEST) -m by_hand
	$(PYTEST) -m hypothesis --hypothesis-profile anew

# Every plimsoll command of README.md and docs/*.md, each typed in a scratch folder with its data made small.
pages: .venv/ready
	PYTHONPATH=src:tests/support $(BIN)/python docs/pages.py $(PAGES)

# What can be installed and uploaded, in dist/: `pip install dist/*.whl`. docs/install.md says the rest.
wheel: .venv/ready
	rm -rf dist
	$(BIN)/python -m hatchling build
	@echo 'next: pip install dist/*.whl in an environment of your own'

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

bench: .venv/ready
	$(BIN)/python benchmarks/prediction.py --seed 1 --count 100 --resume
	$(BIN)/python benchmarks/text_vs_trainer.py

# The site of docs/*.md, in site/. Fails on a broken link, a page that is not in the navigation, and a page of results
# that is not what the result files say: `python docs/results.py` writes it.
docs: .venv/docs-ready
	$(BIN)/python docs/results.py --check
	$(BIN)/python docs/reference.py --check
	$(BIN)/sphinx-build --fail-on-warning --keep-going --nitpicky --quiet --builder html docs site

.venv/docs-ready: .venv/ready docs/requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r docs/requirements.lock
	touch .venv/docs-ready

# The lock files, from pyproject.toml and docs/requirements.in: pinned, with hashes, without registry addresses.
lock:
	$(BIN)/python -m pip install --quiet pip-tools
	$(BIN)/python $(COMPILE) --extra dev --output-file requirements.lock pyproject.toml
	cd docs && ../$(BIN)/python $(COMPILE) --output-file requirements.lock requirements.in

COMPILE := -m piptools compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url \
	--no-emit-find-links --no-emit-trusted-host --no-header

clean:
	rm -rf .venv runs bench-out dist site .pytest_cache .ruff_cache .hypothesis
