# make demo: a table and an HTML report from a fresh clone.  make test: everything that must pass.  Both do all the set-up.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
WARM   := $(VENV)/.compiled
export PYTHONDONTWRITEBYTECODE =  # the tests start many processes: what one has compiled, all read
PYTEST := $(BIN)/python -m pytest --doctest-modules src/trainyard examples/pim_programs tests -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: install demo rtl test test-all mutate static quick-static types unit docs pages clean help

help:
	@echo "make install   install into .venv, and compile the loops of all machines"
	@echo "make demo      install, then run two models on three machines (out/*.html)"
	@echo "make test      install, static checks, doctests, all tests but slow and gpu"
	@echo "make test-all  the same with the slow tiers and long fuzzing"
	@echo "make mutate    mutation testing of one room: ROOM=devices [COUNT=80]; goes on where it ended (docs/mutation.md)"
	@echo "make rtl       hardware: all designs equal to the simulator, properties proved, area and energy in gates (docs/rtl.md)"
	@echo "make docs      the manual as a site (site/index.html), from the pages as they are; a warning is an error"
	@echo "make pages     every number, table and picture of the manual anew, from the scripts that make them"

# no bytecode from pip: most modules are never imported, and those that are get theirs then
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Trainyard needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	@touch $@

$(WARM): $(STAMP)
	$(BIN)/trainyard warm-up
	@touch $@

install: $(WARM)

demo: $(WARM)
	$(BIN)/python examples/demo.py

static: quick-static types

quick-static: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(STAMP)
	$(BIN)/mypy

unit test-all: export NUMBA_CACHE_DIR ?= $(CURDIR)/.numba_cache

unit: $(STAMP)
	$(PYTEST) -m "not slow and not gpu"

test: quick-static
	$(MAKE) --no-print-directory --jobs 2 types unit

test-all: static
	HYPOTHESIS_PROFILE=long $(PYTEST) -m "not gpu" --timeout 3600

ROOM ?= engine
COUNT ?= 80
mutate: $(STAMP)
	nice -n 10 $(BIN)/python scripts/mutate.py $(ROOM) --count $(COUNT)
	$(BIN)/python scripts/mutate.py --page

rtl: export NUMBA_CACHE_DIR ?= $(CURDIR)/.numba_cache
rtl: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[rtl]'
	$(BIN)/python scripts/rtl.py all
	$(BIN)/python scripts/ledger_tables.py
	$(BIN)/python scripts/rtl_diagrams.py
	$(BIN)/python scripts/rtl_page.py

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site
	@echo "site/index.html"

PAPERS := tensordash sigma igo mcdla direct
PAGES := zoo stacking parallelism
pages: $(STAMP)
	$(BIN)/python scripts/paper_figures.py
	$(BIN)/trainyard reproduce --markdown docs/reproduction.md > /dev/null
	$(BIN)/python scripts/ship_ledger.py
	$(BIN)/python scripts/readme_headlines.py
	$(foreach paper,$(PAPERS),$(BIN)/python scripts/paper_page.py $(paper) &&) true
	$(foreach page,$(PAGES),$(BIN)/python scripts/$(page)_page.py &&) true
	$(BIN)/python scripts/manual_pages.py
	$(BIN)/python scripts/speed_page.py
	TRAINYARD_SCREENSHOTS=docs/images TRAINYARD_BROWSER=required $(BIN)/python -m pytest tests/web/test_browser_pictures.py

clean:
	rm -rf $(VENV) .numba_cache .mypy_cache .ruff_cache .pytest_cache out site
