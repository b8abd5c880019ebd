# The two commands of the README. Each sets up all it needs on a fresh machine, then does its job.
VENV := .venv
COMPILED := build/compiled

.PHONY: run test test-all compiled check bench differential docs wheel clean

# ARGS go to `headrace serve`.
run:
	@VENV=$(VENV) scripts/run $(ARGS)

test: $(VENV)/.ready
	scripts/test

# Every test in both forms, compiled and interpreted: twice the time of `make test`.
test-all: $(VENV)/.ready
	scripts/test --all

# A copy of the package with its hot rooms compiled; where that cannot be done it says why, and the copy is plain Python.
compiled: $(VENV)/.ready
	$(VENV)/bin/python hatch_build.py $(COMPILED)

check: $(VENV)/.ready
	scripts/check

# This broker and the peers that are installed under the same loads; ARGS='--list' says which there are.
bench: compiled
	PYTHONPATH=$(abspath $(COMPILED)) $(VENV)/bin/python -m bench.compare $(ARGS)

# Random programs on this broker and on RabbitMQ, where that is installed; ARGS='--programs 100' for fewer than 10,000.
differential: compiled
	PYTHONPATH=$(abspath $(COMPILED)) $(VENV)/bin/python -m tests.differential $(ARGS)

# The documentation as a site on http://127.0.0.1:8000/, with search; ARGS=build writes it to build/site.
docs:
	@[ -x $(VENV)/bin/python ] || scripts/make-venv $(VENV)
	@VENV=$(VENV) scripts/docs $(ARGS)

# Wheels in dist/, compiled and pure, each installed and started once; ARGS=all for every Python that is here.
wheel:
	@[ -x $(VENV)/bin/python ] || scripts/make-venv $(VENV)
	@VENV=$(VENV) scripts/wheel $(ARGS)

$(VENV)/.ready: pyproject.toml scripts/setup
	scripts/setup $(VENV)
	touch $@

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
