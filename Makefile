# Everything from a fresh clone: `make up` serves a real model, `make test` proves the project. `make help` lists all.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Python 3.11 or newer; the first of these that is there. PYTHON=... names another.
PYTHON ?= $(firstword $(shell command -v python3.11 python3.12 python3.13 python3 2>/dev/null))
# A further package index: the CPU build of torch comes from PyTorch's own.
EXTRA_INDEX ?=
# Arguments for `laya up`, the benchmark, or pytest.
ARGS ?=
# How long `make soak` runs.
HOURS ?= 12

VENV := .venv
BIN := $(VENV)/bin
ACCEL := $(if $(filter setup setup-llama-cpp compile up test lint bench bench-hop bench-http bench-node perf proto bench-peers bench-vllm faults soak soak-faults,$(MAKECMDGOALS)),$(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu),cpu)
RUN_LISTS := requirements/$(ACCEL).txt requirements/base.txt requirements/compile.txt requirements/ngh2.txt
DEV_LISTS := requirements/dev.txt
DEPLOY_LISTS := requirements/deploy.txt
LLAMA_LISTS := requirements/llama-cpp.txt
# A stamp is named after what it installed, so a clone, a checkout or a touch never installs in vain.
hash = $(shell cat $(1) | sha256sum | cut -c1-16)
SETUP := $(VENV)/.laya-run-$(ACCEL)-$(call hash,$(RUN_LISTS) pyproject.toml)
DEV := $(VENV)/.laya-dev-$(call hash,$(DEV_LISTS))
DEPLOY := $(VENV)/.laya-deploy-$(call hash,$(DEPLOY_LISTS))
LLAMA := $(VENV)/.laya-llama-$(call hash,$(LLAMA_LISTS))
# How llama.cpp is compiled. As it stands the wheel runs on any x86-64 with AVX2; -DGGML_NATIVE=ON fits it to this machine,
# -DGGML_CUDA=on has it compute on NVIDIA GPUs.
LLAMA_CMAKE_ARGS ?= -DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install --no-deps \
	$(if $(EXTRA_INDEX),--extra-index-url $(EXTRA_INDEX))
CODE := $(wildcard router_node inference_node shared loadtest)
TIERS := $(wildcard tests/unit tests/integration tests/faults tests/e2e tests/deploy)

.PHONY: help setup setup-llama-cpp llama-cpp-if-possible dev dev-deploy compile up test lint proto bench bench-hop bench-http bench-node bench-peers bench-vllm perf faults load soak \
	soak-faults clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*## /|/' | column -t -s '|' \
		|| grep -E '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "Variables: PYTHON=python3.11  EXTRA_INDEX=URL (where the CPU build of torch is)  ARGS='--nodes 1'"

setup: $(SETUP) compile ## Make .venv, install the pinned packages (the GPU list where nvidia-smi works, else the CPU list)
	@:

setup-llama-cpp: setup $(LLAMA) ## Also install llama.cpp, which serves GGUF files; it is compiled, a few minutes
	@:

# What else is tested does not depend on it.
llama-cpp-if-possible: $(SETUP)
	@$(MAKE) ACCEL=$(ACCEL) $(LLAMA) || echo "make: llama.cpp cannot be installed here; the tests that need it are skipped" >&2

compile: $(SETUP) ## Compile the hot path to C where a compiler works; done by setup; LAYA_COMPILE=0 leaves it plain Python
	@$(BIN)/python setup.py compile

dev: setup $(DEV)
	@:

dev-deploy: dev $(DEPLOY) ## And the tools of tests/deploy: Helm, Compose, hadolint, Kubernetes' schemas
	@:

up: setup ## Serve the demo model: a store, a router and two nodes; ARGS='--model PATH' serves another
ifeq ($(or $(findstring --model,$(ARGS)),$(findstring sim,$(ARGS))),)
	@$(BIN)/python -m inference_node.quantize.demo >/dev/null
endif
	@exec $(BIN)/laya up $(ARGS)

lint: dev ## Run ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/mypy $(CODE)

test: lint $(DEPLOY) llama-cpp-if-possible ## Run ruff, mypy and every test tier: unit, integration, faults, e2e, deploy; ARGS='-k name' narrows
	@$(if $(findstring -k,$(ARGS)),,$(plain_too))
	@$(BIN)/python -m pytest $(TIERS) $(ARGS)

proto: dev ## Generate shared/pb from protos/
	@$(BIN)/python protos/generate.py

bench: setup ## Measure the router alone, against fake nodes
	@$(BIN)/python loadtest/benchmark_router.py $(or $(ARGS),--requests 10000 --threads 8)

bench-hop: setup ## Measure a gRPC hop beside nginx, Envoy and grpc.aio; ARGS=--install-peers fetches Envoy
	@$(BIN)/python loadtest/bench_hop.py $(ARGS)

bench-http: setup ## Measure the OpenAI API beside LLM routers and proxies; ARGS=--install-peers fetches them
	@$(BIN)/python loadtest/bench_http.py $(ARGS)

bench-node: setup ## Measure the node's gRPC server beside grpc.aio
	@$(BIN)/python loadtest/bench_node.py $(ARGS)

bench-peers: setup ## Measure peers and Laya before the same simulated nodes, within six minutes; ARGS=--install-peers fetches them
	@$(BIN)/python -m loadtest.bench_peers $(ARGS)

bench-vllm: setup ## Measure real vLLM through the router and directly, within ten minutes
	@$(BIN)/python -m loadtest.bench_vllm $(ARGS)

perf: setup ## Compare the router's hot path with BASE=revision in CPU instructions; ARGS=--self-test tests the test
	@$(BIN)/python -m loadtest.perf $(if $(BASE),--base $(BASE)) $(ARGS)

faults: dev ## Break a cluster in every way for ten minutes, as root; ARGS='--seed N --only NAME'
	@$(BIN)/python -m tests.faults --seconds 600 $(ARGS)

load: dev ## Load the cluster on 127.0.0.1:8000 with locust for a minute; ARGS='--shape spike -t 5m GrpcUser'
	@$(BIN)/locust -f loadtest/locustfile.py --headless --only-summary --host http://127.0.0.1:8000 -u 8 -r 8 -t 60s --stop-timeout 30 $(ARGS)

soak: dev ## Load a cluster for HOURS=12 hours: memory, files, tasks, streams and store in soak/, with a verdict
	@$(BIN)/python -m loadtest.soak --hours $(HOURS) $(ARGS)

soak-faults: dev ## Break a cluster for HOURS=12 hours, as root, with memory, files and tasks in soak.csv and soak.svg
	@$(BIN)/python -m tests.faults --hours $(HOURS) --plot soak.csv $(ARGS)

clean: ## Remove .venv, caches and build products (the demo model stays in the user's cache folder)
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find router_node shared -name '*.so' -delete
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@[ -n "$(PYTHON)" ] && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "make: Python 3.11 or newer is needed; install it, or name it: make setup PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
		|| { rm -rf $(VENV); echo "make: the virtual environment could not be made; on Debian and Ubuntu install python3-venv" >&2; exit 1; }

# Complete lists without dependency resolution: what is installed is what is written, nothing else.
$(SETUP): | $(BIN)/python
	@echo "Installing the $(ACCEL) package list into $(VENV) (once; a few minutes)"
	@$(call install,$(patsubst %,-r %,$(filter-out %/ngh2.txt,$(RUN_LISTS)))) || $(explain)
	@$(call install,--require-hashes -r requirements/ngh2.txt)
	@LAYA_COMPILE=0 $(call install,--no-build-isolation -e .)
	@$(check_libraries)
	@rm -f $(VENV)/.laya-run-* && touch $@

$(DEV): | $(SETUP)
	@echo "Installing the development package list"
	@$(call install,-r $(DEV_LISTS))
	@rm -f $(VENV)/.laya-dev-* && touch $@

$(DEPLOY): | $(DEV)
	@echo "Installing the tools of tests/deploy"
	@$(call install,-r $(DEPLOY_LISTS))
	@rm -f $(VENV)/.laya-deploy-* && touch $@

$(LLAMA): | $(SETUP)
	@echo "Compiling llama.cpp (once; a few minutes)"
	@export CMAKE_ARGS="$(LLAMA_CMAKE_ARGS)" CMAKE_BUILD_PARALLEL_LEVEL=$$(nproc); $(call install,-r $(LLAMA_LISTS))
	@rm -f $(VENV)/.laya-llama-* && touch $@

# pip's words go to a log; on a terminal one line shows how far it is; on failure its errors are shown.
define install
	$(PIP) --progress-bar off $(1) 2>&1 | tee $(VENV)/install.log \
	| awk -v tty="$$(test -t 2 && echo 1)" '!tty { next } /^ *(Collecting|Processing)/ { line = ++n " packages: " $$2 } \
	/^Installing/ { line = "unpacking " n " packages" } { printf "\r\033[K  %s", line; fflush() } END { if (tty) printf "\r\033[K" }' \
	|| { grep -E '^(ERROR|error)' $(VENV)/install.log | cut -c1-160 >&2 || tail -n 20 $(VENV)/install.log >&2; false; }
endef

# Where the hot path is compiled, the plain form of the same sources is tested as well: it runs where no compiler is.
define plain_too
	if $(BIN)/python -c 'import sys; from shared.compiled import compiled; sys.exit(not compiled())'; then \
	echo "The hot path as plain Python:"; \
	LAYA_PLAIN=1 $(BIN)/python -m pytest -q -p no:cacheprovider $(wildcard tests/unit/dispatch tests/unit/relay tests/unit/net); fi
endef

define explain
	{ if grep -q 'torch==.*+cpu' $(VENV)/install.log; then \
	echo "make: the CPU build of torch was not found. It comes from PyTorch's own CPU index, not from the default one:" >&2; \
	echo "      make $(firstword $(MAKECMDGOALS)) EXTRA_INDEX=<address of PyTorch's CPU wheel index>" >&2; fi; exit 1; }
endef

define check_libraries
	$(BIN)/python -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || [ "$$(uname -s)" != Linux ] \
	|| { echo "make: libnuma.so.1 is missing, and vLLM needs it; on Debian and Ubuntu: apt-get install libnuma1" >&2; exit 1; }
endef
