# One line per target: `make help` prints the text after the two hashes.

PROFILE    := ci
TARGET_DIR := $(if $(CARGO_TARGET_DIR),$(abspath $(CARGO_TARGET_DIR)),$(CURDIR)/target)
BINARY     := $(TARGET_DIR)/$(PROFILE)/timelake
# Tests kill the command at named steps; only builds with this feature can be.
FAILPOINTS := --features timelake-cli/failpoints
VENV       := $(CURDIR)/.venv
BENCH_VENV := $(CURDIR)/.venv-bench
STAMP      := .installed
# The first Python that is new enough; PYTHON=... overrides.
PYTHON     ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
                $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
ROWS       ?= 20000000
ROUNDS     ?= 5
UNITS      ?= 20000
WORKERS    ?= 8
# Of deploy-local: an emulator of AWS that runs, and the functions' zips as cargo-lambda lays them out.
ENDPOINT   ?= http://127.0.0.1:4566
ZIPS       ?= $(TARGET_DIR)/lambda
LOCAL      := infra/examples/localstack
# Builds the zips and calls functions on this machine; its linker comes as a Python package.
LAMBDA_VENV := $(CURDIR)/.venv-lambda
WATCH_PORT  := 19000
FUNCTIONS   := planner writer finalizer refresher sweeper

export TIMELAKE_BIN    ?= $(BINARY)
export TIMELAKE_PYTHON ?= $(VENV)/bin/python

.DEFAULT_GOAL := help
.PHONY: help check infra-check deploy-local destroy-local build build-tests venv test sim demo bench bench-b bench-own bench-metadata bench-units bench-functions bench-kernels bench-compare bench-smoke clean-demo e2e chaos zips watch invoke

help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

check: infra-check ## formatting and lints of all code, warnings are errors; the rules of infra/
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --profile $(PROFILE) $(FAILPOINTS) -- -D warnings

infra-check: ## terraform: format, validity, tests of its rules (needs no account)
	@command -v terraform >/dev/null || { echo "terraform 1.9 or newer is needed: https://developer.hashicorp.com/terraform/install" >&2; exit 1; }
	terraform fmt -check -diff -recursive infra
	@for root in infra $(LOCAL); do \
	  terraform -chdir=$$root init -input=false -no-color >/dev/null && terraform -chdir=$$root validate -no-color || exit 1; \
	done
	terraform -chdir=infra test -no-color

deploy-local: ## the functions on an emulator of AWS (ENDPOINT=http://127.0.0.1:4566 ZIPS=target/lambda), and how to try them
	@curl -fsS -o /dev/null $(ENDPOINT)/_localstack/health || { echo "no emulator answers at $(ENDPOINT): infra/README.md tells how to start one" >&2; exit 1; }
	terraform -chdir=$(LOCAL) init -input=false
	terraform -chdir=$(LOCAL) apply -input=false -auto-approve -var endpoint=$(ENDPOINT) -var zips=$(abspath $(ZIPS))
	@terraform -chdir=$(LOCAL) output -raw try

destroy-local: ## take them down again
	terraform -chdir=$(LOCAL) destroy -input=false -auto-approve -var endpoint=$(ENDPOINT) -var zips=$(abspath $(ZIPS))

build: ## the timelake command, as the tests and the demo use it
	cargo build --workspace --bins --profile $(PROFILE)
	@echo "built $(BINARY)"

# With the test targets, so that the tests that follow find every dependency compiled with the same features.
build-tests:
	cargo build --workspace --all-targets --profile $(PROFILE) $(FAILPOINTS)

venv: $(VENV)/$(STAMP) ## the Python readers of the tests in .venv (needs Python 3.11 or newer)

define make_venv
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found; install one or say PYTHON=..." >&2; exit 1; }
	rm -rf $(1)
	$(PYTHON) -m venv $(1) || { echo "hint: on Debian and Ubuntu the package python3-venv is needed" >&2; exit 1; }
	echo '*' > $(1)/.gitignore
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check -r $(2)
	touch $(1)/$(STAMP)
endef

$(VENV)/$(STAMP): tests/python/requirements.txt
	$(call make_venv,$(VENV),$<)

$(BENCH_VENV)/$(STAMP): bench/requirements.txt
	$(call make_venv,$(BENCH_VENV),$<)

$(LAMBDA_VENV)/$(STAMP): tests/e2e/requirements.txt
	$(call make_venv,$(LAMBDA_VENV),$<)

test: venv build-tests ## all tests, tables judged by PyIceberg and DuckDB; last the functions on an emulator of AWS
	@if cargo nextest --version >/dev/null 2>&1; then \
	  cargo nextest run --cargo-profile $(PROFILE) --workspace $(FAILPOINTS); \
	else \
	  echo "cargo-nextest is not installed: running cargo test"; \
	  cargo test --profile $(PROFILE) --workspace $(FAILPOINTS); \
	fi
	$(VENV)/bin/python tests/e2e/run.py --bins $(TARGET_DIR)/$(PROFILE)

e2e: venv build ## the functions on an emulator of AWS, by the command line (ONLY=csv,poison; SKIP_E2E=1 skips it in make test)
	$(VENV)/bin/python tests/e2e/run.py --bins $(TARGET_DIR)/$(PROFILE) $(if $(ONLY),--only $(ONLY))

chaos: venv build ## what may go wrong on AWS: writers that die, lost messages, live commits (ONLY=two_planners; not in make test)
	$(VENV)/bin/python tests/e2e/run.py --chaos --bins $(TARGET_DIR)/$(PROFILE) $(if $(ONLY),--only $(ONLY))

zips: $(LAMBDA_VENV)/$(STAMP) ## the functions as zips for AWS, in target/lambda (profile zip, for this machine's architecture)
	. $(LAMBDA_VENV)/bin/activate && cargo lambda build --profile zip --compiler cargo --output-format zip \
	  $(foreach fn,$(FUNCTIONS),-p timelake-$(fn))
	$(PYTHON) tests/e2e/sizes.py $(TARGET_DIR)/lambda

watch: $(LAMBDA_VENV)/$(STAMP) ## the functions on 127.0.0.1:19000, compiled anew when they change, against the lake of deploy-local
	. $(LAMBDA_VENV)/bin/activate && $(PYTHON) tests/e2e/watch.py $(LOCAL) cargo lambda watch \
	  --invoke-address 127.0.0.1 --invoke-port $(WATCH_PORT)

invoke: $(LAMBDA_VENV)/$(STAMP) ## one call of a function that make watch runs (FN=planner EVENT=events/planner/backfill.json)
	. $(LAMBDA_VENV)/bin/activate && cargo lambda invoke $(or $(FN),planner) -A 127.0.0.1 -P $(WATCH_PORT) \
	  --data-file $(or $(EVENT),events/planner/backfill.json)

sim: ## the simulator: SEEDS=5000 from FIRST=0 on; SEED=n plays one and tells it step by step
	SEEDS=$(or $(SEEDS),5000) FIRST=$(or $(FIRST),0) SEED=$(SEED) cargo test --profile $(PROFILE) --workspace $(FAILPOINTS) --test simulator \
	  -- --ignored --nocapture many_seeds

demo: build venv ## a historian's CSV in local time into a live table, and queries (in demo-out/)
	TIMELAKE_BIN="$(BINARY)" $(VENV)/bin/python demo/run.py

clean-demo: ## remove what the demo made
	rm -rf demo-out

bench: WORKLOAD = a
bench-b: WORKLOAD = b
bench: venv $(BENCH_VENV)/$(STAMP) ## timelake against DuckDB, Polars and PyIceberg (ROWS=20000000 ROUNDS=5)
bench-b: venv $(BENCH_VENV)/$(STAMP) ## the same rows from gzip CSV, against DuckDB and Polars
bench bench-b:
	cargo build --workspace --bins --release
	TIMELAKE_BIN="$(TARGET_DIR)/release/timelake" $(VENV)/bin/python bench/run.py --workload $(WORKLOAD) --rows $(ROWS) --rounds $(ROUNDS) \
	  --peer-python $(BENCH_VENV)/bin/python

bench-own: venv ## our own targets: workloads C, D, F, threads and memory beside A, B and their floors
	cargo build --workspace --bins --release
	TIMELAKE_BIN="$(TARGET_DIR)/release/timelake" $(VENV)/bin/python bench/own.py --rows $(ROWS) --rounds $(ROUNDS) $(if $(ONLY),--only "$(ONLY)")

bench-metadata: ## staging and publishing 10,000 to 100,000 files onto a table that holds as many
	cargo build -p timelake-metadata --release
	$(PYTHON) bench/metadata.py $(TARGET_DIR)/release/timelake-metadata

bench-units: venv ## what many units ask of queue and ledger, on an emulator of AWS, beside the cost model (UNITS=20000 WORKERS=8)
	cargo build -p timelake-units --release
	$(VENV)/bin/python bench/units.py $(TARGET_DIR)/release/timelake-units --units $(UNITS) --writers $(WORKERS)

bench-functions: venv build ## the zips of make zips (ZIPS=target/lambda): sizes, time to start, peak memory of a writer at a full unit
	$(VENV)/bin/python bench/functions.py --zips $(ZIPS)

bench-kernels: ## the inner loops by themselves (criterion)
	cargo bench -p timelake-kernels

bench-compare: venv ## two commits by the instructions they execute (FROM=commit TO=commit; needs valgrind)
	bench/compare.sh $(or $(FROM),HEAD~1) $(or $(TO),HEAD)

bench-smoke: venv $(BENCH_VENV)/$(STAMP) build ## the benches with few rows: do they run, do all outputs agree
	for workload in a b; do \
	  TIMELAKE_BIN="$(BINARY)" $(VENV)/bin/python bench/run.py --workload $$workload --rows 200000 --rounds 1 \
	    --peer-python $(BENCH_VENV)/bin/python --no-save || exit 1; \
	done
	TIMELAKE_BIN="$(BINARY)" $(VENV)/bin/python bench/own.py --rows 200000 --rounds 1 --no-save
	$(VENV)/bin/python bench/metadata.py $(dir $(BINARY))timelake-metadata --rounds 1 --largest 10000 --no-save
	$(VENV)/bin/python bench/units.py $(dir $(BINARY))timelake-units --units 500 --no-save
