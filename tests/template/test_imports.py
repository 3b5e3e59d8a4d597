"""Imports of a rendered package go one way, lazy ones and those for type checkers included."""

import ast
import json
import re
from pathlib import Path

import pytest
from matrix import COMPONENTS, EVERY, FRAMEWORKS, MODELS, MODULES, PROJECTS, TEMPLATE, module_of
from program import PROGRAMS, Project
from warm import run_python

ONLY_CUDA = re.compile(
    r"\btorch\.(cuda|backends\.cu\w+)\b|from torch(\.backends)? import .*\b(cuda|cudnn)\b"
)
MAY_USE_CUDA = {
    "precision.py": "TF32, cuDNN's autotuner, compute capability",
    "accelerator.py": "TF32, cuDNN's autotuner",
    "train.py": "Lightning's: TF32 in cuDNN",
    "debug": "its report of synchronization",
    "fp8": "compute capability",
    "mfu": "the name of the GPU",
    "profiler": "ranges for nsys",
}
COMMANDS = {
    f"components.{module_of(name)}"
    for name, entry in COMPONENTS.items()
    if entry.get("kind") == "command"
}
"""Programs, which may read the whole config; Ray's workers train in the process that it starts."""
OF_OWNERS = {
    "model": {"config_base", "data", "errors"},
    "data": {"config_base", "errors", *(file.stem for file in TEMPLATE.glob("data/shared/*.py"))},
}
"""What the files that users replace may import."""


def imports(package: Path) -> dict[str, set[str]]:
    """Return which modules of a package each module imports, anywhere in its code."""
    files = {
        str(file.relative_to(package).with_suffix("")).replace("/", "."): file
        for file in package.rglob("*.py")
    }
    files = {name: file for name, file in files.items() if not name.startswith("tests.")}
    modules = {name.removesuffix(".__init__"): file for name, file in files.items()}
    return {
        name: {*_imported(name, file, modules)} - {name}
        for name, file in modules.items()
        if name != "__init__"
    }


def _imported(
    name: str,
    file: Path,
    modules: dict[str, Path],
) -> list[str]:
    found = []
    parents = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    text = file.read_text()
    assert not re.search(r"(?m)^\s*import proj\b", text), f"{file}: use relative ones"
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ImportFrom) or node.level == 0:
            continue
        base = [*parents[: len(parents) - node.level + 1], *(node.module or "").split(".")]
        place = ".".join(part for part in base if part)
        for alias in node.names:
            target = f"{place}.{alias.name}" if place else alias.name
            found.append(target if target in modules else place)
    assert not set(found) - modules.keys() - {""}, f"{file} imports what is not rendered"
    return [module for module in found if module]


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return a cycle from each module that is in one."""

    def path(start: str) -> list[str]:
        open_paths = [[start]]
        seen = {start}
        while open_paths:
            current = open_paths.pop()
            for name in sorted(graph[current[-1]]):
                if name == start:
                    return [*current, name]
                if name not in seen:
                    seen.add(name)
                    open_paths.append([*current, name])
        return []

    return [found for name in sorted(graph) if (found := path(name))]


PLACES = [(*pair, "cpu") for pair in PROJECTS] + [(FRAMEWORKS[0], MODELS[0], "nodes")]


@pytest.mark.parametrize(("framework", "model", "hardware"), PLACES)
def test_imports_go_one_way(
    project: Project,
    framework: str,
    model: str,
    hardware: str,
) -> None:
    graph = imports(project(framework, model, hardware) / "src/proj")
    assert cycles(graph) == []
    assert graph["model"] <= OF_OWNERS["model"]
    assert graph["data"] <= OF_OWNERS["data"]
    importing = {name for name, others in graph.items() if "train" in others}
    assert importing <= {"components.ray"}, "nothing else is above train.py"
    assert graph["errors"] == set()
    upward = [
        name
        for name in graph.keys() - COMMANDS
        if name.startswith("components.") and "components" in graph[name]
    ]
    assert upward == [], "components do not know the registry"


def test_upward_imports_and_cycles_are_found(tmp_path: Path) -> None:
    for name, text in {
        "data": "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from .components.show import show\n",
        "components/__init__": "",
        "components/show": "def show():\n    from .. import errors\n    from ..data import load\n",
        "errors": "",
        "__init__": "",
    }.items():
        (tmp_path / name).with_suffix(".py").parent.mkdir(exist_ok=True)
        (tmp_path / name).with_suffix(".py").write_text(text)
    graph = imports(tmp_path)
    expected = {
        "data": {"components.show"},
        "components": set(),
        "errors": set(),
    }
    assert graph == {**expected, "components.show": {"errors", "data"}}
    assert cycles(graph) == [
        ["components.show", "data", "components.show"],
        ["data", "components.show", "data"],
    ]


@pytest.mark.parametrize("component", MODULES)
def test_component_imports_no_other_one_that_it_does_not_require(component: str) -> None:
    """Nor does its test, as each of them can be alone in a project."""
    folder = TEMPLATE / "components" / component
    others = r"^\s*from (?:\.|\.\.components\.)(\w+) import"
    text = "".join((folder / name).read_text() for name in ("component.py", "test_component.py"))
    required = [module_of(component)]
    for name in COMPONENTS[component].get("requires", []):
        required += [module_of(name), f"test_{module_of(name)}"]
    assert {*re.findall(others, text, re.MULTILINE)} <= {"support", *required}


def test_only_few_files_use_what_only_cuda_has() -> None:
    """All others use torch.accelerator, torch.Stream and torch.get_device_module."""
    files = [
        file
        for file in TEMPLATE.rglob("*")
        if {".py", ".jinja"} & {file.suffix} and "test" not in file.name
    ]
    using = [file for file in files if "tests" not in file.parts and _uses_cuda(file)]
    found = {file.parent.name if file.name == "component.py" else file.name for file in using}
    assert found == MAY_USE_CUDA.keys()


def _uses_cuda(file: Path) -> bool:
    return ONLY_CUDA.search(file.read_text()) is not None


@pytest.mark.parametrize(
    "line",
    [
        "torch.cuda.Event()",
        "torch.backends.cudnn.benchmark = True",
        "from torch import cuda, nn",
        "import torch.cuda",
    ],
)
def test_use_of_cuda_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.py").write_text(f"import torch\n{line}\n")
    assert _uses_cuda(tmp_path / "a.py")


@pytest.mark.parametrize("model", MODELS if EVERY else MODELS[:1])
def test_training_loads_only_the_modules_at_the_top(project: Project, model: str) -> None:
    """Not the tests, and no component that is not installed."""
    done = run_python(
        project(FRAMEWORKS[0], model), str(PROGRAMS / "list_imported.py"), "proj.train", "proj"
    )
    loaded = {name.removeprefix("proj").removeprefix(".") for name in json.loads(done.stdout)}
    package = project(FRAMEWORKS[0], model) / "src/proj"
    modules = {file.stem for file in package.glob("*.py")} - {"__init__", "evaluate"}
    assert loaded == {"", "components", *modules}
    assert len(modules) + 2 <= 25
