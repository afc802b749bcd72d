# RewindMQ. `make demo`, `make check` and `make test` need Python 3.11, Java 17 and Maven, and set up the rest by themselves.
PYTHON ?= python3
BIN := .venv/bin
# Tests start brokers and Spark's workers by the hundred: without bytecode each compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup compile s3-server gcs-server azure-server openid-provider collector witness vault registry helm chart wheel sbom release demo docs notebook stack stack-stop check beside test test-spark test-all test-compiled compare acceptance lint mutants bench rabbitmq43 python-unstable soak lock clean

setup: .venv/.ready

# The lock names every package by hash. Only a third of the packages is ever imported, and an import compiles them.
.venv/.ready: requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

# The compiled build of this checkout (docs/development/builds.md), which runs from then on until a source of it changes.
compile: setup
	$(BIN)/python -m rewindmq.compiler

# The S3 server that the tests of the archive start: Go builds it once. The tests also do this by themselves.
s3-server: setup
	$(BIN)/python -c "from tests.support.s3.server import build; build()"

# The same for the servers of Google Cloud Storage (Go) and Azure Blob Storage (npm).
gcs-server: setup
	$(BIN)/python -m tests.support.gcs.server

azure-server: setup
	$(BIN)/python -m tests.support.azure.server

openid-provider: setup
	$(BIN)/python -m tests.support.openid.server

# The same for the OpenTelemetry Collector that the tests of `rewindmq spans` start.
collector: setup
	$(BIN)/python -c "from tests.support.collector.server import build; build()"

# The same for the Vault that keys are tested with.
vault: setup
	$(BIN)/python -c "from tests.support.vault.server import build; build()"

# The same for the schema registry.
registry: setup
	$(BIN)/python -c "from tests.support.registry.server import build; build()"

# The same for the witness that the tests of `rewindmq seal` ask.
witness: setup
	$(BIN)/python -c "from tests.support.witness.server import build; build()"

# Helm, which Go builds once in some minutes, and the tests of the chart in compose/kubernetes with it.
helm: setup
	$(BIN)/python -m tests.support.helm.programs

chart: helm
	$(BIN)/python -m pytest --tier rare tests/system/compose/test_chart.py

# A wheel in dist/: with the compiled build for this Python and platform, or a pure one with REWINDMQ_COMPILE=0, or where
# nothing can be compiled. auditwheel gives a compiled one the tag of the systems that it runs on (manylinux).
wheel: setup
	rm -rf build build-wheel
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir build-wheel .
	mkdir -p dist
	for made in build-wheel/*.whl; do case $$made in \
	  *-none-any.whl) cp $$made dist ;; \
	  *) PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m auditwheel repair --wheel-dir dist $$made ;; \
	esac; done
	rm -rf build-wheel
	@ls -l dist/*.whl

# What the two images have of Python, by the locks that they install: each package with its version and hashes, in CycloneDX.
DIST ?= dist
sbom: setup
	mkdir -p $(DIST)
	for lock in requirements requirements-spark; do \
	  $(BIN)/python -W ignore::UserWarning -m cyclonedx_py requirements compose/$$lock.lock --pyproject pyproject.toml \
	    --output-reproducible --output-file $(DIST)/$$lock.cdx.json || exit 1; \
	done

# Check everything, then commit the version and its changelog: VERSION=0.2.0. It runs .ci/run, unless you say that CI passed for
# HEAD: CI_PASSED=COMMIT. docs/development/release.md.
release: setup
	@$(BIN)/python -m tests.support.release $(if $(CI_PASSED),--ci-passed $(CI_PASSED)) "$(VERSION)"

demo: setup
	$(BIN)/python -m tests.demo.demo

# The docs as a site with a search, in build-docs (docs/development/docs.md). SOURCE=URL of a branch: links to code lead there.
docs: setup
	SOURCE="$(SOURCE)" $(BIN)/python -m sphinx -b html -c docs -j auto -W --keep-going --quiet . build-docs
	@echo "build-docs/index.html"

# docs/history.ipynb run from top to bottom on the data of a demo that has ended, or on REWINDMQ_DATA (an absolute path):
# history.html, with its plots, and audit.html.
notebook: setup
	test -n "$$REWINDMQ_DATA" || test -f demo.html -a -d demo-data || $(BIN)/python -m tests.demo.demo
	$(BIN)/python -m nbconvert --to html --execute docs/history.ipynb --output-dir . --output history.html

# RewindMQ on Kafka, two nodes, with Spark's audit: what compose/compose.yaml runs, as plain processes. Until Ctrl-C.
stack: setup
	$(BIN)/python compose/stack.py up

stack-stop: setup
	$(BIN)/python compose/stack.py stop

lint: setup
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy

# In six processes, as tests wait for brokers half of their time (tests/conftest.py says which tests stay together). PYTEST_OPTIONS= for one, or for other options.
PYTEST_OPTIONS ?= -n 6 --dist loadscope --no-loadscope-reorder
# CI runs a few failed tests again (tests/support/rerun.py).
PYTEST = $(BIN)/python -m $(if $(CI),tests.support.rerun,pytest) $(PYTEST_OPTIONS)

# The short loop. One file starts a broker, and requests each path of the HTTP API once. The others start no process, so two
# processes of pytest are enough: each of them collects all tests.
check: beside
	$(PYTEST) -n 2 --tier quick tests/unit tests/tidy tests/system/http/test_http_reference.py

# Before a merge: all tests except the `long` ones. `make test T=tests/unit/machine` runs every test of one folder or file.
test: $(if $(T),setup,beside)
	$(PYTEST) $(if $(T),$(T),--tier quick)

# Lint, and on the other core, once in a checkout, the bytecode of the tests: otherwise each process of pytest makes all of
# it.
beside: setup
	$(MAKE) --no-print-directory -j2 lint .venv/.bytecode

.venv/.bytecode: .venv/.ready
	$(BIN)/python -m pytest --collect-only --quiet > /dev/null
	touch $@

# Everything except the `rare` tests. PART=rest: without the tests that `make test` has run. BUILD=pure: only the tests that
# `make test-compiled` leaves out. In four processes, because most of these tests start a Kafka, a Spark or a browser, which
# keep two cores busy.
PART ?= all
test-all test-compiled: PYTEST_OPTIONS = -n 4 --dist loadscope --no-loadscope-reorder
test-all: lint
	$(PYTEST) --tier $(PART) $(if $(BUILD),--build $(BUILD))

# On the compiled build: the quick tests except `of_pure`, and those of that build itself. TIER=rest: the others, TIER=all: both.
TIER ?= quick
test-compiled: compile
	$(PYTEST) --build compiled --tier $(TIER) $(T)

# A few Spark tests on another PySpark, beside the locked packages: SPARK=4.0.2 (that of EMR), 4.1.1, or 4.3.0, which has no
# connector. T= for others. docs/development/testing.md has the results.
SPARK ?= 4.0.2
test-spark: T := $(or $(T),tests/system/spark/test_spark_versions.py)
test-spark: .venv-spark-$(SPARK)/.ready
	.venv-spark-$(SPARK)/bin/python -m pytest --tier all $(T)

# Links in place of copies: pip replaces a file that it changes.
.venv-spark-%/.ready: .venv/.ready
	rm -rf .venv-spark-$*
	$(BIN)/python -m venv --without-pip .venv-spark-$*
	cp -al .venv/lib/python3*/site-packages/. .venv-spark-$*/lib/python3*/site-packages/
	$(BIN)/python -m pip --python .venv-spark-$* install --quiet --disable-pip-version-check --no-compile --no-deps pyspark==$*
	touch $@

# Changes of a room, drawn by SEED, that no quick unit test notices (docs/development/mutants.md).
# TESTS="tests/unit/machine": only these folders or files of tests. ONLY="3 17": only these numbers of the sample.
# PROCESSES=1: one mutant at a time, on a busy machine.
ROOM ?= projections/machine
SAMPLE ?= 80
SEED ?= 1
mutants: setup
	nice -n 10 $(BIN)/python -m tests.support.mutants $(ROOM) --sample $(SAMPLE) --seed $(SEED) \
	  $(if $(TESTS),--tests $(TESTS)) $(if $(ONLY),--only $(ONLY)) $(if $(PROCESSES),--processes $(PROCESSES))

# The same scenarios beside real RabbitMQs, Debian's and 4.3, if they are installed, and otherwise beside their recorded
# outcomes. docs/differences.md lists the differences and their reasons.
compare: setup
	$(BIN)/python -m tests.clients.compare
	$(BIN)/python -m tests.clients.compare --profile 4.3

# Other people's suites, fetched from where they are published. Long. SUITES="kombu pika" runs some; `python -m
# tests.acceptance.run --list` names them. Results: docs/acceptance.md.
acceptance: setup
	$(BIN)/python -m tests.acceptance.run $(SUITES)

# Figures beside other brokers, by hand, on a machine that does nothing else: bench.txt (docs/benchmarks.md). A part:
# ROWS="throughput million" PEERS="rabbitmq rewindmq". RewindMQ's compiled build: `make compile` before. LAVINMQ=PATH: LavinMQ.
bench: setup
	$(BIN)/python -m tests.bench.run $(if $(ROWS),--rows $(ROWS)) $(if $(PEERS),--peers $(PEERS))

# RabbitMQ 4.3 for `make bench` and `make compare`: Debian unstable in a separate directory, RABBITMQ43=DIR. As root.
rabbitmq43: setup
	$(BIN)/python -m tests.support.debian_unstable

# The quick unit tests under the newest Python that Debian has (3.14). As root. T= for others.
python-unstable: setup
	$(BIN)/python -m tests.support.python_unstable $(T)

# The long simulation and the rare tests, then hours of mixed traffic, with memory and latency a minute: SOAK_OPTIONS="--hours 8".
SOAK_OPTIONS ?= --hours 2
soak: setup
	$(BIN)/python -m pytest -m slow --timeout=7200 -o faulthandler_timeout=7200
	$(PYTEST) --tier rare
	$(BIN)/python -m tests.bench.soak $(SOAK_OPTIONS)

# requirements.lock has everything; the locks in compose/ have the part that its two images and their wheel need.
LOCK_OPTIONS := --quiet --generate-hashes --strip-extras --allow-unsafe \
  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header

# The lock is made under Python 3.11, so pip-compile leaves out the marker of a package that 3.14 has built in.
lock:
	$(BIN)/python -m pip install --quiet pip-tools
	$(BIN)/pip-compile $(LOCK_OPTIONS) --all-extras --output-file requirements.lock pyproject.toml
	$(BIN)/pip-compile $(LOCK_OPTIONS) --extra build --constraint requirements.lock \
	  --output-file compose/requirements-build.lock pyproject.toml
	$(BIN)/pip-compile $(LOCK_OPTIONS) --extra archive,kafka --constraint requirements.lock \
	  --output-file compose/requirements.lock pyproject.toml
	$(BIN)/pip-compile $(LOCK_OPTIONS) --extra archive,kafka,spark --constraint requirements.lock \
	  --output-file compose/requirements-spark.lock pyproject.toml
	sed -i 's/^\(backports-zstd==[^ ]*\) \\$$/\1 ; python_version < "3.14" \\/' requirements.lock compose/*.lock

clean:
	rm -rf .venv .venv-spark-* build build-docs build-wheel rewindmq/compiled *.egg-info demo-data demo.html audit.html history.html bench.txt stack-data tests/bench/target
