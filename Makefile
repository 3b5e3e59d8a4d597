# Two commands are enough on a fresh machine with python3, pip and git: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(abspath $(VENV))/bin
# The versions that CI tests, for everything that is installed here.
export PIP_CONSTRAINT := $(abspath constraints.txt)
# The project of the demo, and its environment.
DEMO := build/demo
DEMO_VENV := build/demo-venv
DEMO_BIN := $(abspath $(DEMO_VENV))/bin
# Where its torch comes from without a GPU, if it can be reached: PyPI's requires gigabytes of CUDA libraries on Linux.
TORCH_CPU := https://download.pytorch.org/whl/cpu
# The parts of `make test-all`.
PARTS := check generator engine template projects components recipes cpus
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal --durations=20
EVERY := EVERY_TEST=1 $(PYTEST)
# The code that benchmarks/density.py checks.
PLAIN := generator benchmarks template/components template/data template/models template/frameworks template/project tests
# The environment of `make docs`: mkdocs and the program, without what the tests need.
DOCS_VENV := build/docs-venv
DOCS_BIN := $(abspath $(DOCS_VENV))/bin
# What `make try` renders.
MODEL ?= mlp
FRAMEWORK ?= pytorch
# What `make test-versions` combines; each of PYTHONS is a command or a path.
PYTHONS ?= $(PYTHON)
TORCH ?= 2.11.0
# The environment of `make gpu`.
GPU_VENV := build/gpu-venv
GPU_BIN := $(abspath $(GPU_VENV))/bin
GPU_READY = $(GPU_VENV)/ready$(subst /,-,$(shell command -v $(PYTHON)))

.PHONY: help demo test test-fast test-all $(PARTS:%=test-all-%) test-cpus test-versions try gpu gpu-smoke check format docs \
  docs-check sizes bench release clean

help:  ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

# The project folder is the same each time, so its environment can be used again.
demo:  ## render a project for this machine, train it on real data and evaluate it
	@test -x $(DEMO_BIN)/fastproj || { echo 'demo: creating a virtual environment, once'; \
	  $(PYTHON) -m venv $(DEMO_VENV) && $(DEMO_BIN)/python -m pip install --quiet --editable .; }
	@$(DEMO_BIN)/python generator/template_bundle.py
	@if [ -e $(DEMO) ]; then rm -rf $(DEMO).before && mv $(DEMO) $(DEMO).before; fi
	@$(DEMO_BIN)/fastproj new $(notdir $(DEMO)) --output $(dir $(DEMO)) --model resnet --framework pytorch --no-git --yes
	@cmp -s $(DEMO)/pyproject.toml $(DEMO_VENV)/installed.toml || { echo 'demo: installing its requirements, once'; \
	  [ "$$(uname)" != Linux ] || ! grep -q '^default-groups.*"cpu"' $(DEMO)/pyproject.toml \
	  || $(DEMO_BIN)/python -m pip install --quiet --retries 1 torch --index-url $(TORCH_CPU) 2> /dev/null \
	  || echo 'demo: $(TORCH_CPU) cannot be reached: torch comes from the package index'; \
	  $(DEMO_BIN)/python -m pip install --quiet --editable $(DEMO) && cp $(DEMO)/pyproject.toml $(DEMO_VENV)/installed.toml; }
	@echo && cd $(DEMO) && PYTHON=$(DEMO_BIN)/python launch/local.sh --run.name demo \
	  && $(DEMO_BIN)/python -m $(notdir $(DEMO)).evaluate runs/demo
	@echo "all in $(abspath $(DEMO))$$([ ! -e $(DEMO).before ] || echo '; the previous one is in $(DEMO).before')"

# Rendered projects are tested in this environment, so it has the requirements that they declare.
$(VENV)/.ready: pyproject.toml constraints.txt hatch_build.py copier.yml template/project/pyproject.toml.jinja $(wildcard template/*/*/requirements)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable . --group test
	$(BIN)/python tests/support/requirements.py > $(VENV)/requirements.txt
	$(BIN)/python -m pip install --quiet --requirement $(VENV)/requirements.txt
	@touch $@

test-fast: $(VENV)/.ready  ## in two minutes: lint, the tests that start no process, one project with its own tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -q tests/unit
	@$(MAKE) --no-print-directory try

test: check  ## in ten minutes: all checks, and the tests of each fact once; pytest options in ARGS
	$(PYTEST) $(ARGS)

# Each part can be run by itself, as a machine may have little time: make test-all-engine.
test-all: $(PARTS:%=test-all-%)  ## all checks and every test: all projects' own tests, all recipes to their end

test-all-check: check
test-all-generator: $(VENV)/.ready
	$(EVERY) tests/unit tests/update tests/generator $(ARGS)
test-all-engine: $(VENV)/.ready
	$(EVERY) tests/engine $(ARGS)
test-all-template: $(VENV)/.ready
	$(EVERY) tests/template --ignore tests/template/test_projects.py $(ARGS)
test-all-projects: $(VENV)/.ready
	$(EVERY) tests/template/test_projects.py -k 'not components and not recipe' $(ARGS)
test-all-components: $(VENV)/.ready
	$(EVERY) tests/template/test_projects.py -k components $(ARGS)
test-all-recipes: $(VENV)/.ready
	$(EVERY) tests/template/test_projects.py -k recipe $(ARGS)
test-all-cpus: test-cpus

test-cpus: $(VENV)/.ready  ## test the engine and projects as other CPUs would; SETTINGS='avx2 rounding-1', or all
	$(BIN)/python tests/support/cpus.py $(SETTINGS)

test-versions: $(VENV)/.ready  ## projects' own tests with other PYTHONS and releases of TORCH: a table; gigabytes each
	$(BIN)/python tests/support/versions.py --pythons $(PYTHONS) --torch $(TORCH)

try: $(VENV)/.ready  ## render MODEL with FRAMEWORK and run its tests: TESTS='test_train.py -k resume'
	@$(BIN)/python generator/template_bundle.py && rm -rf build/try && mkdir -p build/try
	@$(BIN)/fastproj new proj --model $(MODEL) --framework $(FRAMEWORK) --no-git --yes --output build/try > /dev/null
	@cd build/try/proj/src/proj/tests && PYTHONPATH=$(abspath build/try/proj/src) OMP_NUM_THREADS=1 \
	  $(BIN)/python -m pytest -q -p no:cacheprovider $(TESTS)

# PYTHON's packages are seen here, so that its torch is the one that is tested; what it lacks is installed.
$(GPU_READY): pyproject.toml template/project/pyproject.toml.jinja
	$(PYTHON) -m venv --clear $(GPU_VENV)
	$(PYTHON) -c 'import site; print(site.getsitepackages()[0])' \
	  > "$$($(GPU_BIN)/python -c 'import site; print(site.getsitepackages()[0])')/python.pth"
	$(GPU_BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	PIP_CONSTRAINT= $(GPU_BIN)/python -m pip install --quiet --editable . --group test
	$(GPU_BIN)/python tests/support/requirements.py > $(GPU_VENV)/requirements.txt
	PIP_CONSTRAINT= $(GPU_BIN)/python -m pip install --quiet --requirement $(GPU_VENV)/requirements.txt
	@touch $@

gpu: $(GPU_READY)  ## the rendered projects' own tests that need a GPU, with PYTHON's torch; a skip is a failure
	REQUIRE_GPU=1 $(GPU_BIN)/python -m pytest -m gpu $(ARGS)

gpu-smoke: $(GPU_READY)  ## nine minutes on one GPU: each precision and component, speed, other loops; writes docs/gpu.md
	$(GPU_BIN)/python generator/template_bundle.py
	$(GPU_BIN)/python benchmarks/gpu_smoke.py $(ARGS)
	$(GPU_BIN)/python benchmarks/gpu_page.py

check: $(VENV)/.ready  ## check format, lint and types of the generator, the template and the tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python benchmarks/density.py $(PLAIN)
	$(BIN)/mypy

format: $(VENV)/.ready  ## apply automatic fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(DOCS_VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(DOCS_BIN)/python -m pip install --quiet --editable . --group docs
	@touch $@

docs: $(DOCS_VENV)/.ready  ## build the documentation: build/site/index.html
	$(DOCS_BIN)/python docs/programs/reference.py
	NO_MKDOCS_2_WARNING=1 $(DOCS_BIN)/python -m mkdocs build --quiet --strict

docs-check: docs  ## check all links, and open every page in headless Chromium; screenshots are in build/screenshots
	$(DOCS_BIN)/python docs/programs/links.py
	$(DOCS_BIN)/python docs/programs/browse.py --screenshots build/screenshots

sizes: $(VENV)/.ready  ## count files and lines of the default project of each model
	$(BIN)/python benchmarks/sizes.py

bench: $(VENV)/.ready  ## measure fastproj's commands, and a step, the start and the loader beside those of others
	$(BIN)/python benchmarks/commands.py
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/loading.py

release: $(VENV)/.ready  ## make a release after test-all: VERSION=X.Y.Z; nothing is pushed
	@$(BIN)/python generator/release.py "$$VERSION"

clean:  ## remove generated files
	rm -rf build dist .venv .mypy_cache .pytest_cache .ruff_cache
