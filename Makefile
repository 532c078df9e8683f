# `make help` lists the targets. Everything runs in .venv, which is made when it is needed.
#
#   make test PYTHON=python3.13     another Python, from 3.12 on
#   make test JAX=0.11.2            another jax of those in requirements/
#   make test PYTEST_ARGS='-k name' arguments for pytest
#   make infer ARGS='--checkpoint DIR --prompt "Hello"'
#   make dump WORKLOADS=qwen3-step  only these, for every GPU that they were tuned on
#   make jax VERSION=0.12.0.1       try a release of jax; docs/versions.md explains it
#   make dump VENV=../venv          another place for the virtual environment

PYTHON ?=
JAX ?=
VERSION ?=
VENV ?= .venv
# XLA compiles in several threads and takes about 1 GB, so more workers gain nothing.
# Tests of a file share compiles, so a file stays on one worker. (pytest 9.2 ignores the groups of
# --dist loadgroup, as pytest-xdist 3.8 marks them.)
PYTEST_ARGS ?= -n auto --maxprocesses 4 --dist loadfile
WORKLOADS ?=
# Qwen's programs, and one workload of each other family of models. A compile of ResNet takes ten
# times as long as others, so only the tuned one is made.
families := qwen3-train qwen3-generate qwen3-generate-persistent qwen3-prompts qwen3-prompts-hopper \
    qwen3-prefill qwen3-decode qwen3-step qwen3-step-donated \
    float8-linear-forward fsdp-mlp spectral-diffusion torch-mlp
tuned := resnet50-forward $(families)
BENCH_ARGS ?= -p no:xdist
ARGS ?=
# On a machine with a GPU: a Python with NVIDIA's libraries, jax, and torch to compare with.

# Settings for other programs must change neither XLA's decisions nor which modules are imported.
unexport $(filter JAX_% XLA_% TF_%,$(.VARIABLES))
unexport PYTHONPATH PYTHONHOME PYTHONOPTIMIZE PYTHONWARNINGS PYTHONINSPECT PYTHONSTARTUP
# Each process would compile the source of xlapipe again, and each test session its assertions.
unexport PYTHONDONTWRITEBYTECODE
unexport PYTEST_ADDOPTS PYTEST_PLUGINS
export PYTHONNOUSERSITE := 1
# What is tested, measured or committed is compiled.
export XLAPIPE_NO_CACHE := 1

setup := .ci/setup-venv "$(VENV)" "$(PYTHON)" "$(JAX)"
bin := "$(VENV)/bin"

.DEFAULT_GOAL := help
.PHONY: help setup dump dump-all test test-slow test-all test-tpu test-amd test-cluster test-notebook calibration bench infer lint docs jax lock clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

setup: ## make .venv with the pinned requirements (the others do it as needed)
	@$(setup)

dump: setup ## compile Qwen, and a workload of each other family, into hlo_dumps/
	@$(bin)/xlapipe dump $(or $(WORKLOADS),$(families)) --gemm cublas --gemm triton
	@$(bin)/xlapipe dump $(or $(WORKLOADS),$(tuned)) --locked
	@$(bin)/python -m tests.slim_goldens

dump-all: WORKLOADS := --all
dump-all: dump ## compile every workload, for every GPU that it was tuned on

test: setup ## run the tests, golden comparisons included
	@$(bin)/python -m pytest $(PYTEST_ARGS)

test-slow: setup ## run only the long proofs, which `make test` leaves out; CI runs them too
	@$(bin)/python -m pytest $(PYTEST_ARGS) -m "slow and not exhaustive"

test-all: setup ## run every test, also those that .ci/run leaves out for their time
	@$(bin)/python -m pytest $(PYTEST_ARGS) -m "slow or exhaustive or not slow"

test-tpu: VENV := .venv-tpu
test-tpu: ## compile for TPUs, without a TPU, in .venv-tpu: installs Google's libtpu (0.7 GB)
	@.ci/setup-venv "$(VENV)" "$(PYTHON)" "$(JAX)" tpu
	@"$(VENV)/bin/python" -m pytest tests/tpu -m "" -p no:xdist

test-amd: VENV := .venv-rocm
test-amd: ## compile for AMD GPUs, without one, in .venv-rocm: installs jax's plugin for ROCm (140 MB)
	@.ci/setup-venv "$(VENV)" "$(PYTHON)" "$(JAX)" rocm
	@"$(VENV)/bin/python" -m pytest tests/amd -m "" -p no:xdist

test-cluster: ## compile on a local Dask cluster of two workers, one of which is killed
	@$(setup) cluster
	@$(bin)/python -m pytest tests/search/test_cluster.py -m "" -p no:xdist

test-notebook: ## run the notebook in examples/, with Jupyter's kernel, pandas and matplotlib
	@$(setup) notebook
	@$(bin)/python -m pytest tests/notebook -m "" -p no:xdist

calibration: setup ## derive a calibration from each record of timed probes, into build/calibration
	@mkdir -p build/calibration
	@for record in tests/gpu/calibration/*.record.tar.xz; do \
	    $(bin)/python -m tests.gpu.records calibration $$record \
	        build/calibration/$$(basename $$record .record.tar.xz).jsonl; \
	done

bench: ## compare speed with a bare compile
	@$(setup) bench
	@$(bin)/python -m pytest tests/bench/bench_*.py -s $(BENCH_ARGS)

infer: setup ## generate text with Qwen3: ARGS='--checkpoint DIR --prompt TEXT', or nothing
	@$(bin)/python -m models.qwen3.generate $(ARGS)

lint: setup ## ruff, mypy, import-linter
	@$(bin)/ruff check .
	@$(bin)/ruff format --check .
	@$(bin)/mypy
	@$(bin)/lint-imports

docs: ## build the documentation into build/site; broken links are errors
	@$(setup) docs
	@NO_MKDOCS_2_WARNING=1 $(bin)/mkdocs build --strict
	@echo "docs: build/site/index.html"

jax: ## try another jax (VERSION=0.12.0.1): pin it, run its contract tests, list what changes in plans
	@.ci/jax "$(VERSION)" $(or $(WORKLOADS),$(families))

lock: ## regenerate requirements/ with the newest versions (needs uv)
	@.ci/lock

clean: ## remove .venv and caches; hlo_dumps/ stays
	@if [ -e "$(VENV)/.xlapipe" ]; then \
	    find "$(VENV)" -mindepth 1 -maxdepth 1 ! -name .xlapipe -exec rm -rf {} + ; \
	    rm -rf "$(VENV)"; \
	fi
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .benchmarks build dist
	@find xlapipe models tests -name __pycache__ -type d -prune -exec rm -rf {} +
