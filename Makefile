# Each target sets up all that it needs in .venv: Python 3.11 or newer, make and a package registry are enough.
PYTHON ?= python3
BIN := .venv/bin
unexport PYTHONDONTWRITEBYTECODE  # or every worker and every command compiles the tests anew

.PHONY: simulate test sample slow engines docs docs-check lint lines clean

simulate: .venv/ready
	$(BIN)/rankdad simulate simulations/specs/digits.json

test: .venv/ready
	$(BIN)/python -m pytest -m "not slow" -rs -n 2 --dist worksteal

# Of what takes longer, some cases of each test: what CI runs. Processes often wait: three at once.
sample: .venv/ready
	$(BIN)/python -m pytest -m "slow and not alone" --sample -rs --durations=25 -n 3 --dist loadgroup
	$(BIN)/python -m pytest -m "slow and alone" --sample -rs -s --reruns 2

# All that takes longer, and all examples of properties: some hours, at night and before a release.
slow: .venv/ready
	$(BIN)/python -m pytest -m "(slow or hypothesis) and not alone" --hypothesis-profile full -rs -n 3 --dist loadgroup
	$(BIN)/python -m pytest -m "slow and alone" -rs -s --reruns 2

# What needs an engine that hospitals run, each in an environment of its own: its packages would change ours.
engines: .venv-nvflare/ready .venv-flower/ready
	.venv-nvflare/bin/python -m pytest -p no:xdist -rs tests/engines
	.venv-flower/bin/python -m pytest -p no:xdist -rs tests/engines

# The documentation's site, in docs/_build.
docs: .venv/ready
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -b html docs docs/_build

# All commands of the documentation's pages, and what they say: tens of minutes.
docs-check: .venv/ready
	$(BIN)/python -m tests.pages

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

.venv-nvflare/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-nvflare
	.venv-nvflare/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[demo,nvflare]' \
		pytest pytest-timeout hypothesis
	touch $@

# Flower takes other versions of some packages than ours.
.venv-flower/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-flower
	grep -vE '^(certifi|fastapi|packaging|protobuf|rich|starlette|typer|uvicorn)==' constraints.txt \
		> .venv-flower/constraints.txt
	.venv-flower/bin/python -m pip install --quiet --constraint .venv-flower/constraints.txt \
		--editable '.[demo,flower]' 'flwr[simulation]' pytest pytest-timeout hypothesis
	touch $@

# How much there is to carry on: lines and files of the product, package by package, then of what measures and tests it.
lines:
	@for package in common distributed page local remote platforms simulations rankdad benchmarks tests; do \
		git ls-files -z "$$package/*.py" | xargs -0 cat | wc -l | xargs printf '%-12s %6d lines' "$$package"; \
		git ls-files "$$package/*.py" | wc -l | xargs printf ' %4d files\n'; done

clean:
	rm -rf .venv build docs/_build docs/generated *.egg-info
