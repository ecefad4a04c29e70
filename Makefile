# make demo: a table and an HTML report from a fresh clone.  make test: everything that must pass.  Both do all the set-up.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
export NUMBA_CACHE_DIR ?= $(CURDIR)/.numba_cache

.PHONY: demo test test-all static unit docs pages clean help

help:
	@echo "make demo      install, then run two models on three machines (out/*.html)"
	@echo "make test      install, static checks, doctests, all tests but slow and gpu"
	@echo "make test-all  the same with the slow tiers and long fuzzing"
	@echo "make docs      the manual as a site (site/index.html), from the pages as they are; a warning is an error"
	@echo "make pages     every number, table and picture of the manual anew, from the scripts that make them"

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
	$(BIN)/python -m pytest --doctest-modules src/trainyard examples/pim_programs tests -m "not slow and not gpu" -n 2 --dist loadfile

test: static unit

test-all: static
	HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest --doctest-modules src/trainyard examples/pim_programs tests -m "not gpu" -n 2 --dist loadfile --timeout 3600

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site
	@echo "site/index.html"

PAPERS := tensordash sigma igo mcdla direct
PAGES := zoo stacking parallelism
pages: $(STAMP)
	$(BIN)/trainyard reproduce > /dev/null
	$(foreach paper,$(PAPERS),$(BIN)/python scripts/paper_page.py $(paper) &&) true
	$(foreach page,$(PAGES),$(BIN)/python scripts/$(page)_page.py &&) true
	$(BIN)/python scripts/paper_figures.py
	$(BIN)/python scripts/manual_pages.py
	$(BIN)/python scripts/speed_page.py
	TRAINYARD_SCREENSHOTS=docs/images TRAINYARD_BROWSER=required $(BIN)/python -m pytest tests/web/test_browser_pictures.py

clean:
	rm -rf $(VENV) .numba_cache .mypy_cache .ruff_cache .pytest_cache out site
