# Two commands do everything: `make demo` and `make test`. Each sets up what it needs; all are safe to repeat.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test check bench docs lock clean

setup: .venv/ready

.venv/ready: requirements.lock pyproject.toml
	$(PYTHON) -c "import sys; assert (3, 11) <= sys.version_info < (3, 14), f'plimsoll needs Python 3.11 to 3.13, and this is {sys.version}: set PYTHON=python3.11'"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch .venv/ready

demo: setup
	$(BIN)/plimsoll train code --memory 768MiB --run runs/demo
	$(BIN)/plimsoll sample runs/demo --tokens 160

test: setup
	$(BIN)/python -m pytest --numprocesses logical --maxprocesses 4 --dist loadfile

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

bench: setup
	$(BIN)/python benchmarks/prediction.py --seed 1 --count 100 --resume
	$(BIN)/python benchmarks/text_vs_trainer.py

# The lock file, from pyproject.toml: pinned, with hashes, without registry addresses.
lock:
	$(BIN)/python -m pip install --quiet pip-tools
	$(BIN)/python -m piptools compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url \
		--no-emit-find-links --no-emit-trusted-host --no-header --extra dev --output-file requirements.lock pyproject.toml

clean:
	rm -rf .venv runs bench-out .pytest_cache .ruff_cache .hypothesis
