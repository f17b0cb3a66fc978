# Two commands for a newcomer: make demo, make test. Both may be interrupted and run again.
SHELL := /bin/sh
PYTHON ?= python3
export PYTHON

.PHONY: help demo test gpu-report lint audit docs clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-6s %s\n", $$1, $$2}' Makefile

demo: .venv/.with-workload ## prove fine-tuning on this machine, from an empty checkout; MODEL=smollm2-135m: of a real model
	@MODEL="$(MODEL)" sh .ci/demo.sh

test: .venv/.with-dev ## run every test, on real container engines where this machine allows it
	@sh .ci/test.sh $(TESTS)

gpu-report: .venv/.with-workload ## measure this machine's GPU, in build/gpu-report; may be interrupted and run again
	@.venv/bin/devkit benchmark --output build/gpu-report

lint: .venv/.with-lint ## check style, types, layers and generated files
	@bash .ci/lint.sh

audit: .venv/.with-audit ## list what the wheel brings along, its licenses and known vulnerabilities, in build/audit
	@sh .ci/audit.sh

docs: .venv/.with-docs ## build the documentation site in build/site, and check its links
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet
	@.venv/bin/python docs/check_links.py build/site

clean: ## remove everything that make wrote, downloads included
	rm -rf .venv .demo .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist build

# A stamp is written only when the step before it ended well, so an interrupted step is done again.
.venv/.with-workload: pyproject.toml .ci/constraints.txt .ci/venv.sh .ci/install.sh
	@sh .ci/venv.sh
	@sh .ci/install.sh workload
	@touch $@

.venv/.with-dev: pyproject.toml .ci/constraints.txt .ci/venv.sh .ci/install.sh
	@sh .ci/venv.sh
	@sh .ci/install.sh workload dev
	@touch $@ .venv/.with-workload .venv/.with-lint

# Linting needs no torch: the types of the workload are then checked less strictly, and the output says so.
.venv/.with-lint: pyproject.toml .ci/constraints.txt .ci/venv.sh .ci/install.sh
	@sh .ci/venv.sh
	@sh .ci/install.sh lint
	@touch $@

.venv/.with-audit: pyproject.toml .ci/constraints.txt .ci/venv.sh .ci/install.sh
	@sh .ci/venv.sh
	@sh .ci/install.sh audit
	@touch $@

.venv/.with-docs: pyproject.toml .ci/constraints.txt .ci/venv.sh .ci/install.sh
	@sh .ci/venv.sh
	@sh .ci/install.sh docs
	@touch $@
