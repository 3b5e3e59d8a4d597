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
# What `make try` renders.
MODEL ?= mlp
FRAMEWORK ?= pytorch
# Which examples `make examples` replays, all by default, and the environment for their packages.
NAMES ?=
EXAMPLES_VENV := build/examples-venv
EXAMPLES_BIN := $(abspath $(EXAMPLES_VENV))/bin
# Where `make bench` measures techniques: cpu or cuda.
DEVICE ?= cpu
# The environment of `make gpu`.
GPU_VENV := build/gpu-venv
GPU_BIN := $(abspath $(GPU_VENV))/bin
GPU_READY = $(GPU_VENV)/ready$(subst /,-,$(shell command -v $(PYTHON)))
# The machine for which `make gpu-bundle` collects packages.
PYTHON_VERSION ?= 3.12
PLATFORM ?= manylinux_2_28_x86_64

.PHONY: help demo test test-all try examples gpu gpu-bundle gpu-smoke check format docs docs-check bench release clean

help:  ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 12

# The project folder is the same each time, so its environment can be used again.
demo:  ## render a project for this machine, train it on real data and print a report
	@test -x $(DEMO_BIN)/fastproj || { echo 'demo: creating a virtual environment, once'; \
	  $(PYTHON) -m venv $(DEMO_VENV) && $(DEMO_BIN)/python -m pip install --quiet --editable .; }
	@if [ -e $(DEMO) ]; then rm -rf $(DEMO).before && mv $(DEMO) $(DEMO).before; fi
	@$(DEMO_BIN)/fastproj new $(notdir $(DEMO)) --output $(dir $(DEMO)) --model resnet --framework pytorch --no-git --yes
	@cmp -s $(DEMO)/pyproject.toml $(DEMO_VENV)/installed.toml || { echo 'demo: installing its requirements, once'; \
	  [ "$$(uname)" != Linux ] || ! grep -q '$(TORCH_CPU)' $(DEMO)/pyproject.toml \
	  || $(DEMO_BIN)/python -m pip install --quiet --retries 1 torch --index-url $(TORCH_CPU) 2> /dev/null \
	  || echo 'demo: $(TORCH_CPU) cannot be reached: torch comes from the package index'; \
	  $(DEMO_BIN)/python -m pip install --quiet --editable $(DEMO) && cp $(DEMO)/pyproject.toml $(DEMO_VENV)/installed.toml; }
	@echo && cd $(DEMO) && PYTHON=$(DEMO_BIN)/python launch/local.sh --run.name demo \
	  && $(DEMO_BIN)/python -m $(notdir $(DEMO)).tools.report runs/demo
	@echo "all in $(abspath $(DEMO))$$([ ! -e $(DEMO).before ] || echo '; the previous one is in $(DEMO).before')"

# Rendered projects are tested in this environment, so it has the requirements that they declare. The reference for their
# networks is apart, and peft, which imports it: torchmetrics imports transformers where it finds it, and mypy then reads
# it, for most of a minute. So is pyarrow, without which projects must work.
$(VENV)/.ready: pyproject.toml constraints.txt hatch_build.py copier.yml template/project/pyproject.toml.jinja $(wildcard template/data/*/requirements)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable . --group test
	$(BIN)/python tests/support/requirements.py > $(VENV)/requirements.txt
	$(BIN)/python -m pip install --quiet --requirement $(VENV)/requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps --target $(VENV)/references --upgrade transformers peft pyarrow
	@touch $@

test: $(VENV)/.ready  ## run all checks, and the tests of each fact once; pytest options in ARGS
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal --durations=20 $(ARGS)

test-all: export EVERY_TEST := 1
test-all: test  ## run all checks and every test, with every framework and model

try: $(VENV)/.ready  ## render MODEL with FRAMEWORK and run its tests: TESTS='test_train.py -k resume'
	@rm -rf build/try && mkdir -p build/try
	@$(BIN)/fastproj new proj --model $(MODEL) --framework $(FRAMEWORK) --no-git --yes --output build/try > /dev/null
	@cd build/try/proj/src/proj/tests && PYTHONPATH=$(abspath build/try/proj/src) OMP_NUM_THREADS=1 \
	  $(BIN)/python -m pytest -q -p no:cacheprovider $(TESTS)

# Beside the packages of the tests, whose environment it sees. PyPI's torchvision, of timm, does not load beside a torch for
# CPUs, and where it is installed, transformers and lightning do not either.
$(EXAMPLES_VENV)/.ready: $(VENV)/.ready $(wildcard examples/*/example.toml)
	$(BIN)/python -m venv $(EXAMPLES_VENV)
	$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' \
	  > "$$($(EXAMPLES_BIN)/python -c 'import site; print(site.getsitepackages()[0])')/fastproj.pth"
	$(BIN)/python examples/replay.py --requirements > $(EXAMPLES_VENV)/requirements.txt
	$(EXAMPLES_BIN)/python -m pip install --quiet --requirement $(EXAMPLES_VENV)/requirements.txt
	@$(EXAMPLES_BIN)/python -c 'import torchvision' 2> /dev/null || { \
	  version=$$($(EXAMPLES_BIN)/python -m pip show torchvision | sed -n 's/^Version: //p'); \
	  $(EXAMPLES_BIN)/python -m pip uninstall --quiet --yes torchvision; \
	  $(EXAMPLES_BIN)/python -m pip install --quiet --retries 1 --no-deps torchvision==$$version+cpu --index-url $(TORCH_CPU) 2> /dev/null \
	  || echo 'examples: $(TORCH_CPU) cannot be reached, and those with timm need a torchvision of there'; }
	@touch $@

examples: $(EXAMPLES_VENV)/.ready  ## replay each of examples/, or those in NAMES='timm-classifier': train, export, resume, update
	OMP_NUM_THREADS=1 $(EXAMPLES_BIN)/python examples/replay.py $(NAMES)

gpu-bundle: $(VENV)/.ready  ## collect what gpu-smoke needs, for a GPU machine without a network
	PYTHONPATH=tests/support $(BIN)/python -m gpu_smoke.bundle --python-version $(PYTHON_VERSION) --platform $(PLATFORM)

# No environment is created, and nothing is downloaded: PYTHON has torch 2.11 or newer.
gpu-smoke:  ## check rendered projects on a GPU, for nine minutes, with PYTHON's torch; options in ARGS
	@PYTHONPATH=$(abspath tests/support):$$PYTHONPATH $(PYTHON) -m gpu_smoke $(ARGS)

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

gpu: $(GPU_READY)  ## the rendered projects' own tests that need CUDA, with PYTHON's torch; a skip is a failure
	REQUIRE_GPU=1 $(GPU_BIN)/python -m pytest -m gpu $(ARGS)

check: $(VENV)/.ready  ## check format, lint and types of the generator, the template and the tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.ready  ## apply automatic fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.ready  ## build the documentation: build/site/index.html
	$(BIN)/python docs/programs/reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

docs-check: docs  ## check all links, and open every page in headless Chromium; screenshots are in build/screenshots
	$(BIN)/python docs/programs/links.py
	$(BIN)/python docs/programs/browse.py --screenshots build/screenshots

bench: $(VENV)/.ready  ## measure fastproj's commands; with PAGES='channels-last' or PAGES=all, techniques, on DEVICE=cuda too
	$(BIN)/python $(if $(PAGES),benchmarks/bench.py --device $(DEVICE) $(filter-out all,$(PAGES)),benchmarks/commands.py)

release: $(VENV)/.ready  ## make a release after test-all: VERSION=X.Y.Z; nothing is pushed
	@$(BIN)/python generator/release.py "$$VERSION"

clean:  ## remove generated files
	rm -rf build dist .venv .mypy_cache .pytest_cache .ruff_cache
