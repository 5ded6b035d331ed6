# Every target installs what it needs into .venv: Python 3.11 to 3.14 and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP_LOG := $(VENV)/pip.log

# $(call timed,NAME,COMMAND): run a command and print how long it took, also if it fails
timed = start=$$(date +%s); code=0; $(2) || code=$$?; \
	result=took; [ $$code = 0 ] || result="failed after"; \
	echo "$(1) $$result $$(($$(date +%s) - start)) s"; exit $$code

# $(call install,REQUIREMENT): the versions of constraints.txt; what pip prints is shown only if it fails
install = $(BIN)/python -m pip install --constraint constraints.txt --editable '$(1)' > $(PIP_LOG) 2>&1 \
	|| { code=$$?; cat $(PIP_LOG); (exit $$code); }

.PHONY: demo test lint check campaign test-machines test-slow test-wheel test-gpu test-data bench search report pages printed docs clean

demo: $(STAMP)
	@$(call timed,make demo,$(BIN)/toa demo)

# both at a time: type checks use one core
test: $(STAMP)
	@$(call timed,make test,$(MAKE) --no-print-directory -j2 lint check)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 14) else "toa needs Python 3.11 to 3.14, found %d.%d; name another one: make PYTHON=python3.13" % v)'
	$(PYTHON) -m venv $(VENV)
	@echo "installing toa into $(VENV), which takes minutes; pip writes to $(PIP_LOG)"
	@$(call timed,the installation,$(call install,.[dev]))
	touch $@

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: $(STAMP)
	$(BIN)/python -m pytest -q -n auto --dist worksteal

# the quick tests as on five other machines, one after another; ROWS="numpy-reduced busy-core" runs some of them
ROWS ?=
test-machines: $(STAMP)
	$(BIN)/python -m tests.machines $(ROWS)

test-slow: $(STAMP)
	$(BIN)/python -m pytest -q -m slow

# damaged files for every loader and killed runs: resumes if stopped; at most two hours on two cores
campaign: $(STAMP)
	$(BIN)/python -m tests.campaign

test-wheel: $(STAMP)
	$(BIN)/python -m pytest -q -m slow tests/test_wheel.py

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -q -m gpu

test-data: $(STAMP)
	$(BIN)/python -m pytest -q -m data

bench: $(STAMP)
	$(BIN)/python benchmarks/operator_attention.py --tokens 16 128 512 --batch 2

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --builder html docs build/site

$(VENV)/.docs: $(STAMP)
	@$(call install,.[docs])
	touch $@

report: $(STAMP)
	$(BIN)/python benchmarks/wide.py decide > /dev/null
	$(BIN)/toa report results --out results/report

# the search for the protocol `toa`: resumes where it stopped; needs a GPU and the datasets ($TOA_DATA)
WORKERS ?= 4
PLAN ?= benchmarks/search.toml
search: $(STAMP)
	mkdir -p runs/search
	$(BIN)/python benchmarks/search.py lines --all --plan $(PLAN) > runs/search/runs.txt
	$(BIN)/toa reproduce --runs runs/search/runs.txt --executor pool --workers $(WORKERS) --out runs/search
	$(BIN)/python benchmarks/search.py collect runs/search --plan $(PLAN)
	$(BIN)/python benchmarks/search.py lines --all --plan $(PLAN) --stage confirm > runs/search/confirm.txt
	$(BIN)/toa reproduce --runs runs/search/confirm.txt --executor pool --workers $(WORKERS) --out runs/search
	$(BIN)/python benchmarks/search.py collect runs/search --plan $(PLAN)
	$(BIN)/python docs/page_tables.py

# every table of numbers on every page, from the records in results/
pages: report
	$(BIN)/python docs/page_tables.py

# what the code on a page prints
printed: $(STAMP)
	$(BIN)/python docs/printed_output.py

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
