# The two commands of the README. Each sets up all it needs on a fresh machine, then does its job.
VENV := .venv

.PHONY: run test check bench clean

run: $(VENV)/.ready
	$(VENV)/bin/headrace serve

test: $(VENV)/.ready
	scripts/check
	scripts/test

check: $(VENV)/.ready
	scripts/check

bench: $(VENV)/.ready
	$(VENV)/bin/python bench/storage.py

$(VENV)/.ready: pyproject.toml scripts/setup
	scripts/setup $(VENV)
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
