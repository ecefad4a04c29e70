# make demo: a table and an HTML report from a fresh clone.  make test: everything that must pass.  Both do all the set-up.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
export NUMBA_CACHE_DIR ?= $(CURDIR)/.numba_cache

.PHONY: demo test test-all static unit docs clean help

help:
	@echo "make demo      install, then run two models on three machines (out/*.html)"
	@echo "make test      install, static checks, doctests, all tests but slow and gpu"
	@echo "make test-all  the same with the slow tiers and long fuzzing"
	@echo "make docs      docs/reproduction.md, zoo.md, tensordash.md, sigma.md, igo.md, mcdla.md and direct.md anew"

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Trainyard needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/python examples/demo.py

static: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

unit: $(STAMP)
	$(BIN)/python -m pytest --doctest-modules src/trainyard tests -m "not slow and not gpu" -n 2 --dist loadfile

test: static unit

test-all: static
	HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest --doctest-modules src/trainyard tests -m "not gpu" -n 2 --dist loadfile --timeout 3600

docs: $(STAMP)
	$(BIN)/trainyard reproduce > /dev/null
	$(BIN)/python scripts/zoo_page.py
	$(BIN)/python scripts/tensordash_page.py
	$(BIN)/python scripts/sigma_page.py
	$(BIN)/python scripts/igo_page.py
	$(BIN)/python scripts/mcdla_page.py
	$(BIN)/python scripts/direct_page.py

clean:
	rm -rf $(VENV) .numba_cache .mypy_cache .ruff_cache .pytest_cache out
