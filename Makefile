# Every target does its own set-up: a virtual environment in .venv, locked dependencies, a release build of the wheel
# installed there. Needs Python 3.11+, a Rust toolchain and a C compiler. `make help` lists the targets.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS   += --no-builtin-rules

PYTHON        ?= python3
FUZZ_SECONDS  ?= 180
FUZZ_TARGETS  ?= decode queue_pair node handshake
PYTEST_ARGS   ?=
MUTANTS_ARGS  ?=
# Most tests of Python wait for peers, timers and processes: four at a time keep two cores busy.
TEST_WORKERS  ?= 4
DEMO_ARGS     ?=
BENCH_ARGS    ?=
GALLERY       ?=

MUTANTS_VERSION := 27.1.0
# `make long` takes the faults of this day of the year.
MUTANTS_DAY     := $(shell echo $$(($$(date +%-j) - 1)))

VENV    := .venv
BIN     := $(VENV)/bin
STAMPS  := .make
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
TARGET  := $(or $(CARGO_TARGET_DIR),target)
PYTHON_TREES := $(wildcard python tests benches examples crates/python crates/capi docs/conf.py docs/_site)
# The one interpreter all of cargo builds the extension module against: changing it would rebuild the bindings.
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python
export PATH := $(PATH):$(HOME)/.cargo/bin

say = @printf '\n\033[1m==> %s\033[0m\n' "$(1)"

.PHONY: walks man notebooks gallery site wheels release image systems c-package help demo test test-rust test-python test-bare test-torch judges long truth bench mutants mutants-python lint format docs fuzz wheel venv lock clean FORCE
FORCE:

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  FUZZ_SECONDS=$(FUZZ_SECONDS)  PYTEST_ARGS='-k ...'  TEST_WORKERS=$(TEST_WORKERS)  DEMO_ARGS='...'  BENCH_ARGS='--repetitions 3'  PYTHON=$(PYTHON)"

# --- environment ------------------------------------------------------------------------------------------------

$(STAMPS)/venv: requirements-dev.lock
	$(call say,Python environment in $(VENV))
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) not found; install Python 3.11 or later, or set PYTHON=" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "error: $$($(PYTHON) --version) is too old; set PYTHON= to Python 3.11 or later" >&2; exit 1; }
	@command -v cargo >/dev/null || { echo "error: cargo not found; install a Rust toolchain, see https://rustup.rs" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@mkdir -p $(STAMPS) && touch $@

venv: $(STAMPS)/venv ## the virtual environment with the locked dependencies

# The list changes when a file appears or goes; its members change when a file is edited. Either rebuilds the wheel.
SOURCES := $(shell find crates python -type f -not -name '*.pyc' -not -name '*.so' -not -path '*/tests/*' \
    -not -path 'python/openmrc/lib/*' -not -path 'python/openmrc/include/*' \
    -not -path 'crates/*/examples/*' -not -path '*/target/*' | LC_ALL=C sort)
$(STAMPS)/sources: FORCE
	@mkdir -p $(STAMPS)
	@printf '%s\n' $(SOURCES) | cmp -s - $@ || printf '%s\n' $(SOURCES) > $@

# The C interface goes into the wheel as files of the Python package; crates/python/backend.py does it for `make wheel`.
C_FILES := python/openmrc

$(STAMPS)/wheel: $(STAMPS)/venv $(STAMPS)/sources $(SOURCES) Cargo.toml Cargo.lock pyproject.toml
	$(call say,Release wheel)
	@rm -rf $(STAMPS)/dist
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps \
	    --no-build-isolation --wheel-dir $(STAMPS)/dist .
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall $(STAMPS)/dist/*.whl
	@touch $@

wheel: $(STAMPS)/wheel ## build the release wheel and install it in .venv

# zig links against an old glibc, and for another processor. The wheel of this processor is installed where nothing of
# the checkout is, and used.
ZIG     := $(STAMPS)/zig
TARGETS ?= x86_64 aarch64
GLIBC_VERSION := 2.28
GLIBC   := manylinux_$(subst .,_,$(GLIBC_VERSION))

$(ZIG)/stamp: requirements-wheels.lock $(STAMPS)/venv
	@rm -rf $(@D)
	$(BIN)/python -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-wheels.lock
	@touch $@

wheels: $(ZIG)/stamp ## wheels for x86-64 and aarch64 in dist/, for Linux with glibc 2.28 or later, checked
	$(call say,Wheels for $(TARGETS))
	@rm -rf dist
	@mkdir -p $(C_FILES)/lib/libibverbs $(C_FILES)/include && cp crates/capi/include/*.h $(C_FILES)/include/
	for target in $(TARGETS); do \
	    [[ -d $$(rustc --print sysroot)/lib/rustlib/$$target-unknown-linux-gnu ]] || rustup target add "$$target-unknown-linux-gnu"; \
	    PATH="$(CURDIR)/$(ZIG)/bin:$$PATH" cargo zigbuild --locked --release --package openmrc-capi \
	        --target "$$target-unknown-linux-gnu.$(GLIBC_VERSION)"; \
	    cp $(TARGET)/$$target-unknown-linux-gnu/release/libopenmrc.so $(C_FILES)/lib/libopenmrc.so.0; \
	    $(ZIG)/bin/python -m ziglang cc -target "$$target-linux-gnu.$(GLIBC_VERSION)" @crates/capi/libibverbs/flags \
	        -o $(C_FILES)/lib/libibverbs/libibverbs.so.1; \
	    PATH="$(CURDIR)/$(ZIG)/bin:$$PATH" $(BIN)/maturin build --release --zig --target "$$target-unknown-linux-gnu" \
	        --compatibility $(GLIBC) --interpreter python3.11 --out dist; \
	done
	for wheel in dist/*.whl; do \
	    $(ZIG)/bin/auditwheel show "$$wheel" | tr -s '[:space:]' ' ' | tee /dev/stderr \
	        | grep -E 'platform tag: "manylinux_2_(1[0-9]|2[0-8])_' > /dev/null; \
	done
	$(call say,The wheel of this processor in a clean environment)
	@rm -rf $(STAMPS)/clean && $(PYTHON) -m venv $(STAMPS)/clean
	$(STAMPS)/clean/bin/python -m pip install --quiet --disable-pip-version-check dist/*_$$(uname -m).whl
	cd $(STAMPS)/clean && bin/openmrc --version && bin/openmrc example planned-fabric --out examples \
	    && bin/openmrc simulate examples/planned-fabric.yaml && bin/openmrc plan examples/lab.yaml

# The source distribution takes what cargo has built for the wheels, so only the project's own crates are built again.
release: wheels ## the wheels and a source distribution in dist/, both checked and installed; nothing is uploaded
	$(call say,Source distribution)
	PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH=crates/python $(BIN)/python -c 'import backend; backend.build_sdist("dist")'
	$(call say,What an index would be given)
	$(ZIG)/bin/python crates/python/release.py dist --targets '$(TARGETS)' --glibc $(GLIBC_VERSION)
	$(call say,The source distribution in a clean environment)
	@rm -rf $(STAMPS)/clean && $(PYTHON) -m venv $(STAMPS)/clean
	CARGO_TARGET_DIR="$(abspath $(TARGET))" $(STAMPS)/clean/bin/python -m pip install --quiet --disable-pip-version-check dist/*.tar.gz
	cd $(STAMPS)/clean && bin/openmrc --version && bin/openmrc example planned-fabric && bin/openmrc simulate planned-fabric.yaml \
	    && bin/openmrc config-c --libs && bin/openmrc run -- true

# Compiled for them, not run: what packets, paths, plans and simulations are made of has to stay free of Linux.
SYSTEMS  ?= x86_64-pc-windows-gnu x86_64-apple-darwin aarch64-apple-darwin
PORTABLE := wire transport fabric schedule workload scenario sim auto flow

systems: ## check that the crates of planner, decoder and simulator compile for Windows and macOS
	for target in $(SYSTEMS); do \
	    printf '\n\033[1m==> %s\033[0m\n' "$$target"; \
	    [[ -d $$(rustc --print sysroot)/lib/rustlib/$$target ]] || rustup target add "$$target"; \
	    cargo check --locked --target "$$target" $(PORTABLE:%=--package openmrc-%); \
	done

# Docker and podman build the image of the Containerfile; this needs neither them nor a registry, but root and debootstrap.
image: ## check that the container image builds from the wheel in dist/, and works (as root)
	$(call say,Container image)
	.ci/container $(STAMPS)/container

# Without Python: neither its environment nor its extension module.
c-package: ## the C library for users without Python in dist/: a tarball with a file for pkg-config, and a .deb
	$(call say,Packages of the C library)
	cargo build --locked --release --package openmrc-capi
	$(CC) @crates/capi/libibverbs/flags -o $(TARGET)/release/libibverbs.so.1
	$(PYTHON) crates/capi/package.py --library $(TARGET)/release/libopenmrc.so \
	    --libibverbs $(TARGET)/release/libibverbs.so.1 --out dist

lock: $(STAMPS)/venv ## renew requirements-dev.lock and Cargo.lock after a change of dependencies
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra dev --generate-hashes \
	    --custom-compile-command 'make lock' --output-file requirements-dev.lock pyproject.toml
	echo 'ixnetwork_restpy>=1.12' | $(BIN)/uv pip compile --quiet --no-deps --generate-hashes --no-annotate \
	    --custom-compile-command 'make lock' --output-file requirements-judges.lock -
	printf '%s\n' 'torch>=2.14' numpy matplotlib pytest pytest-timeout expecttest accelerate 'transformers>=5' 'torchft>=0.2' parameterized lightning 'ray[train]>=2.35' | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
	    --generate-hashes --no-annotate --custom-compile-command 'make lock' --output-file requirements-torch.lock - pyproject.toml
	printf '%s\n' 'ziglang>=0.13' 'cargo-zigbuild>=0.20' 'auditwheel>=6.1' 'packaging>=24.2' trove-classifiers | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
	    --generate-hashes --no-annotate --custom-compile-command 'make lock' --output-file requirements-wheels.lock -
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra dev --extra docs --generate-hashes --no-annotate \
	    --constraint requirements-dev.lock --custom-compile-command 'make lock' --output-file requirements-docs.lock pyproject.toml
	cargo update --workspace
	cargo update --workspace --manifest-path fuzz/Cargo.toml

# --- what people come for ---------------------------------------------------------------------------------------

demo: $(STAMPS)/wheel ## eight planes on loopback: kill some, watch nothing stop
	$(call say,Demo)
	$(BIN)/openmrc demo $(DEMO_ARGS)

test: test-rust test-python ## every test: Rust, then Python

# openmrc-python has no Rust tests: it is tested from Python, and as a test binary it would need a shared libpython.
test-rust: $(STAMPS)/venv
	$(call say,Rust tests)
	if cargo nextest --version >/dev/null 2>&1; then \
	    cargo nextest run --locked --workspace --exclude openmrc-python --no-fail-fast; \
	    cargo test --locked --workspace --exclude openmrc-python --doc --quiet; \
	else \
	    cargo test --locked --workspace --exclude openmrc-python --no-fail-fast; \
	fi

# Keysight's packet templates, read by tests/wire/test_keysight.py out of the wheel. Installed it would be 130 MB in
# 6,283 files, of which ten are read.
$(STAMPS)/judges/stamp: requirements-judges.lock $(STAMPS)/venv
	@rm -rf $(@D)
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
	    --dest $(@D) -r requirements-judges.lock
	@touch $@

judges: $(STAMPS)/judges/stamp ## download what the tests compare our header tables with

test-python: $(STAMPS)/wheel $(STAMPS)/judges/stamp
	$(call say,Python tests)
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --durations 20 $(PYTEST_ARGS)

test-bare: $(STAMPS)/wheel ## the tests that use other programs, with those hidden: each passes or is skipped
	$(call say,Tests without other programs)
	.ci/bare $(PYTEST_ARGS)

# torch comes with 5 GB of libraries for accelerators, without which it does not import.
TORCH := .venv-torch

$(STAMPS)/torch: requirements-torch.lock $(STAMPS)/wheel
	$(call say,Python environment with torch in $(TORCH))
	test -x $(TORCH)/bin/python || $(PYTHON) -m venv $(TORCH)
	$(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check --no-cache-dir --require-hashes -r requirements-torch.lock
	$(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall $(STAMPS)/dist/*.whl
	@touch $@

test-torch: $(STAMPS)/torch ## the tests of the backend for PyTorch, in an environment of their own (5 GB)
	$(call say,Tests with torch)
	$(TORCH)/bin/python -m pytest tests/torch $(PYTEST_ARGS)

long: $(STAMPS)/wheel $(STAMPS)/judges/stamp ## the long mode of the tests: soak runs, many seeds (tens of minutes)
	$(call say,Rust tests with many seeds)
	OPENMRC_LONG=1 cargo test --locked --workspace --exclude openmrc-python --no-fail-fast
	$(call say,Python tests marked long)
	OPENMRC_LONG=1 $(BIN)/python -m pytest -m long --timeout=0 $(PYTEST_ARGS)
	cargo test --locked --quiet --manifest-path mutants/Cargo.toml --target-dir $(STAMPS)/mutants/planter
	$(MAKE) mutants MUTANTS_ARGS='--least 0.95'
	$(MAKE) mutants-python MUTANTS_ARGS='--sample 100 --seed $(MUTANTS_DAY)'

# Exit code 1 of reproduce says that a claim disagrees; the page says which.
truth: $(STAMPS)/wheel ## every published row with every seed, and the comparisons with other simulators; writes the pages in docs (an hour)
	$(call say,Published rows)
	$(BIN)/openmrc reproduce --sweeps --markdown > $(STAMPS)/published.md || [ $$? -eq 1 ]
	mv $(STAMPS)/published.md docs/published.md
	$(call say,Agreement with the least times and another simulator)
	$(BIN)/python benches/agreement.py --write

bench: $(STAMPS)/wheel ## measure against this machine's own ceilings; writes benches/results/
	$(call say,Benchmarks)
	cargo build --locked --release --package openmrc-bench
	cargo build --locked --release --package openmrc-sim --example reach
	cargo build --locked --release --package openmrc-collectives --example kernels
	cargo build --locked --release --package openmrc-nic --example post_poll
	$(BIN)/python benches/run.py --bench-binary $(TARGET)/release/openmrc-bench $(BENCH_ARGS)

fuzz: $(STAMPS)/wheel ## fuzz every target for FUZZ_SECONDS each
	for target in $(FUZZ_TARGETS); do \
	    printf '\n\033[1m==> Fuzz %s for %s s\033[0m\n' "$$target" "$(FUZZ_SECONDS)"; \
	    fuzz/run.sh "$$target" "$(FUZZ_SECONDS)"; \
	done

# A fault that no test notices is listed in .make/mutants/survivors.txt: it needs a test, or a reason in
# .cargo/mutants.toml. All are planted at once, each behind a switch; MUTANTS_ARGS='--sample 200', '--file GLOB' take some.
mutants: $(STAMPS)/venv $(STAMPS)/mutants/bin/cargo-mutants ## plant faults into wire, transport, fabric, schedule and nic's memory, and list those that no test notices (about 25 minutes)
	$(call say,Faults planted into crates: wire transport fabric schedule nic)
	cargo build --locked --release --quiet --manifest-path mutants/Cargo.toml --target-dir $(STAMPS)/mutants/planter
	$(BIN)/python -m tests.helpers.rust_mutants wire transport fabric schedule nic \
	    --cargo-mutants $(STAMPS)/mutants/bin/cargo-mutants --planter $(STAMPS)/mutants/planter/release/openmrc-mutants \
	    --folder $(STAMPS)/mutants $(MUTANTS_ARGS)

mutants-python: $(STAMPS)/wheel ## the same for the Python packages localise and switchconf
	$(call say,Faults planted into openmrc.localise and openmrc.switchconf)
	$(BIN)/python -m tests.helpers.mutants openmrc/localise tests/localise $(MUTANTS_ARGS)
	$(BIN)/python -m tests.helpers.mutants openmrc/switchconf tests/switchconf $(MUTANTS_ARGS)

$(STAMPS)/mutants/bin/cargo-mutants:
	cargo install --locked --quiet --root $(STAMPS)/mutants cargo-mutants@$(MUTANTS_VERSION)

lint: $(STAMPS)/wheel ## formatting, clippy, ruff, mypy, and the stub against the compiled module
	$(call say,Rust)
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	$(call say,Python)
	$(BIN)/ruff check $(PYTHON_TREES)
	$(BIN)/ruff format --check $(PYTHON_TREES)
	$(BIN)/mypy
	$(BIN)/mypy benches
	$(BIN)/mypy examples/*.py examples/train/*.py
	$(call say,Stub of openmrc._core against the compiled module)
	MYPYPATH=python $(BIN)/stubtest --mypy-config-file pyproject.toml openmrc._core

format: $(STAMPS)/venv ## rewrite both languages' sources in the project's format
	cargo fmt --all
	$(BIN)/ruff check --fix --quiet $(PYTHON_TREES) || true
	$(BIN)/ruff format $(PYTHON_TREES)

# The extra "docs" goes into the environment of development, whose versions its lock keeps.
$(STAMPS)/docs: requirements-docs.lock $(STAMPS)/venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-docs.lock
	@touch $@

docs: $(STAMPS)/wheel $(STAMPS)/docs ## renew docs/cli.md, docs/fields.md and the fields of verbs.Device, and build the site: site/index.html, a directory for each version
	$(BIN)/python -m tests.helpers.device_options
	$(BIN)/python -m openmrc.cli._options docs/cli.md
	$(BIN)/python -m openmrc.reference . > docs/fields.md.part && mv docs/fields.md.part docs/fields.md
	$(MAKE) site

site: $(STAMPS)/wheel $(STAMPS)/docs ## the pages of docs with a search and the reference, in site/VERSION; a link or name that is none fails
	$(call say,Site)
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --quiet --no-deps --workspace
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet --builder html docs site/$(VERSION)
	rm -rf site/$(VERSION)/rust && cp -r $(TARGET)/doc site/$(VERSION)/rust
	$(BIN)/python docs/_site/versions.py site

notebooks: $(STAMPS)/wheel $(STAMPS)/docs ## the tutorials as notebooks in site/notebooks/, run; what a page does not show fails
	$(call say,Notebooks)
	$(BIN)/python -m tests.helpers.notebooks site/notebooks

man: $(STAMPS)/wheel ## manual pages of all commands in man/man1, from the same texts as their help
	$(BIN)/python -m openmrc.cli._manual man/man1

walks: $(STAMPS)/wheel ## follow the tutorials and write docs/walks.md, with times
	$(BIN)/python -m tests.helpers.walks docs/walks.md

gallery: $(STAMPS)/wheel ## make the pictures of the pages anew; GALLERY='planes.png ...' only these
	$(call say,Pictures)
	$(BIN)/python docs/_site/gallery.py $(GALLERY)

clean: ## remove .venv, stamps, wheels, the site and the cargo target directory
	rm -rf $(VENV) $(TORCH) $(STAMPS) $(TARGET) dist site man docs/reference
