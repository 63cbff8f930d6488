# `make demo` and `make test` work on a fresh machine that has Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Trust the certificates that the machine trusts, a company's own among them.
export UV_SYSTEM_CERTS := 1

.PHONY: demo test check install lock clean

demo: $(VENV)/.runtime
	$(BIN)/serinus demo

test: $(VENV)/.test
	$(BIN)/python -m pytest

check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/unit

install: $(VENV)/.runtime

$(VENV)/.uv: requirements/uv.txt
	$(PYTHON) -c 'import sys; sys.exit("Serinus needs Python 3.11 or newer; name one with `make PYTHON=/path/to/python3.11`." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@touch $@

$(VENV)/.runtime: $(VENV)/.uv requirements/runtime.txt pyproject.toml
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/runtime.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.test: $(VENV)/.runtime requirements/test.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/test.txt
	@touch $@

# Renew the locked requirements after a change of pyproject.toml.
lock: $(VENV)/.uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --group build pyproject.toml -o requirements/runtime.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --group build --group test pyproject.toml -c requirements/runtime.txt -o requirements/test.txt

clean:
	rm -rf $(VENV) build dist
