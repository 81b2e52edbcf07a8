# `make` alone runs what CI runs. Everything happens in .venv, which is made on first use and kept up to date.
# PYTHON: the interpreter that .venv is made with (3.11 or later), e.g. `make test PYTHON=python3.12`.

PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
BIN := .venv/bin
STAMP := .venv/.installed
COMPILED := $(wildcard core/*/*.c plugins/*/*/*.c)
JOBS ?= 5
SOAK_MINUTES ?= 10
QUICK := tests/core tests/dsl tests/stores
GUARANTEE ?= exactly_once
# Each second day all tests run without compiled parts; those of `make other-way` run the other way then.
COMPILED_TODAY = $(or $(PENSTOCK_COMPILED),$(shell expr $$(date +%s) / 86400 % 2))
BENCHES ?= core-count core-windowed-count spark-local-count spark-local-windowed-count spark-local-session-count spark-local-filter-map

# Tests make tens of thousands of directories and small files: in memory, where Linux has room for them.
IN_MEMORY = $(shell test "$$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $$4 }')" -gt 8000000 2>/dev/null && \
	! grep -q ' /dev/shm [^ ]* [^ ]*noexec' /proc/mounts && \
	awk '/^MemAvailable/ && $$2 > 12000000 { print "/dev/shm" }' /proc/meminfo)

.PHONY: all help venv java warm view lint format types quick other-way test test-all test-install soak docs demo demo-kafka bench bench-kafka figures clean
.DEFAULT_GOAL := all

all: lint types test docs  ## what CI runs: lint, types, test, docs

help:  ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP)  ## .venv with penstock (editable) and all that development needs

$(STAMP): setup.cfg setup.py pyproject.toml $(COMPILED)
	@test -n "$(PYTHON)" || { echo "penstock needs Python 3.11 or later, and there is none on PATH: install it, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "penstock needs Python 3.11 or later; PYTHON=$(PYTHON) is $$($(PYTHON) --version 2>&1)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { rm -rf .venv; echo "$(PYTHON) cannot make a virtual environment: install its venv module (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	@echo "installing penstock and what it needs into .venv (PySpark alone is some hundred megabytes)"
	@$(BIN)/python -m pip uninstall --quiet --disable-pip-version-check --yes penstock  # its name before it was penstock-streams
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@rm -rf penstock*.egg-info  # what is left of an installation here would hide the plugins of a later one
	@$(MAKE) --no-print-directory view
	@touch $@

java:  ## check that Spark will find Java 17 or later
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	command -v "$$java" >/dev/null || { echo "Spark needs Java 17 or later, and $$java is not there: install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or set JAVA_HOME" >&2; exit 1; }; \
	found=$$("$$java" -version 2>&1 | awk -F'"' '/version/ { print int($$2); exit }'); \
	test "$${found:-0}" -ge 17 || { echo "Spark needs Java 17 or later; $$java is $$("$$java" -version 2>&1 | head -n 1): install a newer one or set JAVA_HOME to it" >&2; exit 1; }

warm: $(STAMP) java  ## Spark's archive of classes for this host, if it is missing
	@$(BIN)/penstock warmup --if-missing || echo "Spark will take longer to start"

# Type checkers do not follow the import hook of an editable installation: in .venv they find the links as stubs, by
# which nothing is imported.
view:  ## the tree as `pip install` lays it out, as links, for tools that read and do not import
	@mkdir -p build/view/penstock
	@find build/view/penstock -xtype l -delete
	@for each in core/*.py $(patsubst %/,%,$(dir $(wildcard core/*/__init__.py doors/*/__init__.py))) core/py.typed plugins stores contrib; do \
		link=build/view/penstock/$${each##*/}; test -e $$link || ln -s "$(CURDIR)/$$each" $$link; done
	@for site in .venv/lib/python3*/site-packages; do test ! -d "$$site" || { \
		rm -rf "$$site/penstock-stubs" && cp -RP build/view/penstock "$$site/penstock-stubs" && \
		mv "$$site/penstock-stubs/__init__.py" "$$site/penstock-stubs/__init__.pyi"; }; done

lint: $(STAMP) view  ## ruff, and the table of layers by import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=build/view $(BIN)/lint-imports

format: $(STAMP)  ## put the code into ruff's form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP) view  ## mypy --strict, the tests too
	$(BIN)/mypy
	$(BIN)/mypy $(wildcard tests bench examples)

quick: $(STAMP)  ## tests of core, the DSL and the stores, in a minute or two, without Java and Spark
	$(BIN)/python -m pytest -q -n 2 $(QUICK) $(PYTEST)

test: $(STAMP) warm  ## tests of everything, in JOBS processes: more than cores, for half of the time a test waits
	@export TMPDIR=$$(mktemp -d "$(or $(TMPDIR),$(IN_MEMORY),/tmp)/t.XXXXXX") && \
		export PENSTOCK_COMPILED=$(COMPILED_TODAY) && echo "PENSTOCK_COMPILED=$$PENSTOCK_COMPILED" && \
		$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder $(PYTEST) && rm -rf "$$TMPDIR"

other-way: $(STAMP)  ## core, DSL, stores and conformance, with compiled parts if `make test` is without them today, and without if with
	PENSTOCK_COMPILED=$(if $(filter 0,$(COMPILED_TODAY)),1,0) \
		$(BIN)/python -m pytest -q -n 2 $(QUICK) tests/conformance -m "not spark and not broker" $(PYTEST)

# The first Python has Spark and each extra, too.
PYTHONS ?= $(shell for minor in 11 12 13; do for python in "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.$$minor.*/bin/python python3.$$minor; do \
	"$$python" -c "import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != (3, $$minor))" 2>/dev/null && echo "$$python" && break; done; done)

test-install: $(STAMP) java  ## what users install: bare environments on each Python from 3.11 to 3.13 that is here, each extra
	$(BIN)/python -m tests.installed $(or $(PYTHONS),$(BIN)/python)

test-all: export TESTS_OF_DAY = all
test-all: test  ## all tests, and what `make test` has a part of each day

soak: $(STAMP) java  ## crash rounds of every kind, SOAK_MINUTES (10) for each log, mode, guarantee and program; SEED chooses others
	@for options in "--log local" "--log local --program dsl" "--log local --mode continuous" \
		"--log kafka --changelog topic" "--log kafka --guarantee at_least_once" "--log kafka --fault 'lose offsets'" \
		"--log kafka --mode continuous --changelog topic" "--log kafka --mode continuous --program dsl --brokers 2"; do \
		echo "python -m tests.crash $$options"; \
		eval "$(BIN)/python -m tests.crash --minutes $(SOAK_MINUTES) --seed $${SEED:-$$(date +%j)} $$options" || exit 1; done

docs: $(STAMP)  ## docs/_build/html, warnings are errors
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

demo: $(STAMP) java  ## word counts of a real text, embedded and on Spark; kill it in the middle and start it again
	$(BIN)/python examples/demo.py --engine embedded --data-dir .demo/embedded
	$(BIN)/python examples/demo.py

demo-kafka: $(STAMP) java  ## the same against a real Kafka broker; GUARANTEE=at_least_once for the other guarantee
	$(BIN)/python examples/demo.py --kafka --data-dir .demo-kafka/$(GUARANTEE) --guarantee $(GUARANTEE)

bench-kafka: $(STAMP) java  ## throughput and latency over a real broker, beside Java Kafka Streams (needs a JDK)
	$(BIN)/python -m bench kafka-count kafka-count-at-least-once kafka-filter-map kafka-word-count kafka-windowed-count latency

FIGURES ?= build/figures.json
figures: $(STAMP) java  ## measures and writes the page of figures, on a machine that does nothing else
	mkdir -p $(dir $(FIGURES))
	$(BIN)/python -m bench kafka-count kafka-filter-map kafka-word-count kafka-windowed-count kafka-dsl-word-count \
		kafka-dsl-windowed-count kafka-stream-table-join kafka-stream-stream-join dataframe-operators startup \
		--json $(FIGURES)
	$(BIN)/python -m bench.figures $(FIGURES) docs/figures.md

bench: $(STAMP) java  ## throughput, and where the time goes
	$(BIN)/python -m bench $(BENCHES)

clean:  ## remove what was built (not .venv)
	rm -rf build dist docs/_build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage spark-warehouse
	find . -path ./.venv -prune -o -name __pycache__ -type d -exec rm -rf {} +
