# Two commands for a newcomer: make demo, make test. Each may be interrupted and run again.
SHELL := /bin/sh
PYTHON ?= python3
export PYTHON
TESTS ?=

.PHONY: help demo test test-all test-nightly test-versions release-rehearsal goldens lock gpu-report lint audit docs clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-17s %s\n", $$1, $$2}' Makefile

demo: .venv/.with-workload ## the main job on this machine: doctor, a dev container, fine-tuning proven, a real model tuned
	@sh .ci/demo.sh

test: .venv/.with-test ## the tests for each change, five to nine minutes; TESTS=tests/doctor runs some of them
	@bash .ci/test.sh test $(TESTS)

test-all: .venv/.with-test ## what make test leaves out: real engines and clusters, fuzzing, faults, whole matrices
	@bash .ci/test.sh all $(TESTS)

test-nightly: .venv/.with-test ## what takes too long for each commit
	@bash .ci/test.sh nightly $(TESTS)

test-versions: ## a short run with the newest and the lowest releases, and with the newest Python
	@bash .ci/versions.sh

release-rehearsal: .venv/.with-test ## publish a release to servers on this machine, and use each part as a stranger would
	@bash .ci/test.sh nightly tests/engine/test_release.py

goldens: .venv/.with-test ## write every golden file; read the diff
	@DEVKIT_WRITE_GOLDENS=1 .venv/bin/python -m pytest -q -m golden tests
	@.venv/bin/python examples/generate.py

lock: .venv/.with-lint ## write .ci/constraints.txt, the versions that development installs
	@sh .ci/lock.sh

gpu-report: .venv/.with-workload ## measure this machine's GPU, in build/gpu-report
	@.venv/bin/devkit verify --bench --output build/gpu-report

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
.venv/.with-%: pyproject.toml .ci/constraints.txt .ci/venv.sh .ci/install.sh
	@sh .ci/venv.sh
	@sh .ci/install.sh $(WANTED)
	@touch $@

.venv/.with-workload: WANTED = workload
.venv/.with-test: WANTED = workload,mcp test
# Linting needs no torch: the types of the workload are then checked less strictly, and the output says so.
.venv/.with-lint: WANTED = mcp lint
.venv/.with-audit: WANTED = "" audit
.venv/.with-docs: WANTED = "" docs
