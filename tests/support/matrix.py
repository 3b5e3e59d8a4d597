"""The combinations that can be rendered, discovered from the template."""

import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "template"
QUESTIONS: dict[str, Any] = yaml.safe_load((ROOT / "copier.yml").read_text())
ENTRIES: dict[str, dict[str, str]] = QUESTIONS["models"]["default"]
MODELS: list[str] = list(ENTRIES)
FRAMEWORKS: list[str] = list(QUESTIONS["frameworks"]["default"])
COMPONENTS: dict[str, dict[str, Any]] = QUESTIONS["component_table"]["default"]
MODULES = [
    name for name, entry in COMPONENTS.items() if not {"launch", "workflow", "file"} & entry.keys()
]
"""The components that are Python modules."""
CLASSES = [name for name in MODULES if "kind" not in COMPONENTS[name]]
"""Those of them that training builds."""
PAIRS = list(itertools.product(FRAMEWORKS, MODELS))
EVERY = os.environ.get("EVERY_TEST") == "1"
"""Whether to check everything, as `make test-all` does, and not each fact once."""
ENGINE_MODEL = next(name for name, entry in ENTRIES.items() if entry["data"] == "table")
"""The model that trains fastest: tests of the engine use it."""
ONE_PER_KIND = list({entry["data"]: name for name, entry in reversed(ENTRIES.items())}.values())
"""The first model of each kind of data."""
COVER = [(FRAMEWORKS[0], model) for model in MODELS] + [
    (framework, ENGINE_MODEL) for framework in FRAMEWORKS[1:]
]
PROJECTS = PAIRS if EVERY else COVER
"""Each model and each framework: other pairs have no file that none of these has."""
UPDATE_SOURCE = "git+https://git.example.org/owner/fastproj@v0.3.0"
HARDWARE: dict[str, list[str]] = {
    "cpu": ["--gpus", "0"],
    "gpu": ["--gpus", "1", "--tensor-cores", "fp16", "--components", "gpu-ci"],
    "gpus": ["--gpus", "4", "--tensor-cores", "bf16", "--components", "slurm"],
    "nodes": [
        "--gpus",
        "8",
        "--tensor-cores",
        "fp8",
        "--nodes",
        "2",
        f"--data=update_source={UPDATE_SOURCE}",
    ],
}
"""Machines; `answers` adds the components: none, the default, one, all."""


def tiers(usual: Iterable[Any], further: Iterable[Any]) -> list[Any]:
    """Return parameters of a test: the usual ones, and those that only `make test-all` runs."""
    values = [value if isinstance(value, tuple) else (value,) for value in further]
    return [*usual, *(pytest.param(*value, marks=pytest.mark.test_all) for value in values)]


def offered(framework: str, components: Iterable[str] = COMPONENTS) -> list[str]:
    """Return the components that work with a framework."""
    return [
        name for name in components if framework in COMPONENTS[name].get("frameworks", [framework])
    ]


def answers(framework: str, hardware: str) -> list[str]:
    """Return the options of `fastproj new` for a machine."""
    components = ["--components", ",".join(offered(framework))] if hardware == "nodes" else []
    return ["--framework", framework, *HARDWARE[hardware], *components]


GPUS = [hardware for hardware in HARDWARE if hardware != "cpu"]
HARDWARE_COVER = [(*pair, "cpu") for pair in COVER]
HARDWARE_COVER += [
    (FRAMEWORKS[place % len(FRAMEWORKS)], model, GPUS[place // len(FRAMEWORKS) % len(GPUS)])
    for place, model in enumerate(MODELS)
]
HARDWARE_COVER += [
    (*COVER[0], hardware) for hardware in GPUS if (*COVER[0], hardware) not in HARDWARE_COVER
]
ALL = [*itertools.product(FRAMEWORKS, MODELS, HARDWARE)] if EVERY else HARDWARE_COVER
"""Each model, framework and GPU machine, one pair with all machines, and those with none."""


def module_of(component: str) -> str:
    """Return the name of a component's Python module."""
    return component.replace("-", "_")
