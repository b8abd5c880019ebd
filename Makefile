# The two commands of the README. Each sets up all it needs on a fresh machine, then does its job.
VENV := .venv
COMPILED := build/compiled
SOURCES := $(shell find src -name '*.py')

.PHONY: run test compiled check bench clean

run: $(VENV)/.ready
	$(VENV)/bin/headrace serve

test: $(VENV)/.ready
	scripts/check
	scripts/test

# Not part of the suite yet: a few tests still fail on the compiled package, see docs/design/compiled.md.
compiled: $(COMPILED)/.ready
	PYTHONPATH=$(abspath $(COMPILED)) scripts/test tests/unit tests/property tests/golden tests/crash

check: $(VENV)/.ready
	scripts/check

bench: $(VENV)/.ready
	$(VENV)/bin/python bench/storage.py

$(VENV)/.ready: pyproject.toml scripts/setup
	scripts/setup $(VENV)
	touch $@

$(COMPILED)/.ready: $(VENV)/.ready hatch_build.py $(SOURCES)
	$(VENV)/bin/python hatch_build.py $(COMPILED)
	touch $@

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
