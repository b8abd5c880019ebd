# The two commands of the README. Each sets up all it needs on a fresh machine, then does its job.
VENV := .venv
COMPILED := build/compiled
SOURCES := $(shell find src -name '*.py')

.PHONY: run test check bench clean

run: $(COMPILED)/.ready
	PYTHONPATH=$(COMPILED) $(VENV)/bin/headrace serve

# The suite runs on the sources and, but for what Spark and the browser do, once more on the compiled package.
test: $(COMPILED)/.ready
	scripts/check
	scripts/test
	PYTHONPATH=$(abspath $(COMPILED)) scripts/test tests/unit tests/property tests/golden tests/crash tests/integration/amqp091

check: $(VENV)/.ready
	scripts/check

bench: $(COMPILED)/.ready
	PYTHONPATH=$(COMPILED) $(VENV)/bin/python bench/storage.py

$(VENV)/.ready: pyproject.toml scripts/setup
	scripts/setup $(VENV)
	touch $@

$(COMPILED)/.ready: $(VENV)/.ready hatch_build.py $(SOURCES)
	$(VENV)/bin/python hatch_build.py $(COMPILED)
	touch $@

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
