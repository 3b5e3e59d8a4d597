"""Imports of a rendered package go one way, lazy ones and those for type checkers included."""

import ast
import re
from pathlib import Path

import pytest
from matrix import PROJECTS, TEMPLATE
from program import Project

LAYERS: list[set[str]] = [
    {"tools"},
    {"api"},
    {"train"},
    {"accelerator", "callbacks", "datamodule", "extras", "module", "saved_run", "trainer_config"},
    {"framework"},
    {"open_run"},
    {"run"},
    {"load_checkpoint"},
    {"parts", "progress"},
    {"faults", "techniques"},
    {"loaders", "run_folder", "metrics", "collected", "log", "hooks", "phase_times", "device_times"},
    {"resume", "trackers"},
    {"checkpoint", "console"},
    {"optim", "speed", "grad_scaler", "distributed"},
    {"cuda", "launched"},
    {"config"},
    {"model"},
    {"data"},
    {"readers", "sources"},
    {"failure"},
    {"kept_settings", "loader_worker", "model_size", "progress_bar", "run_lock"},
    {"config_errors"},
    {"config_help"},
    {"config_base", "environment", "ranges"},
    {"contracts", "errors"},
]
"""The modules and folders of a package, highest first. A module imports its own layer and those below it.

`ranges` and `sources` are former names, which the model.py and data.py of older projects import.
"""
ONLY_CUDA = re.compile(r"\btorch\.(cuda|backends\.cu\w+)\b|from torch(\.backends)? import .*\b(cuda|cudnn)\b")
MAY_USE_CUDA = {
    "cuda.py": "all but what follows",
    "techniques/step_graph.py": "CUDA graphs",
    "kept_settings.py": "flags that a build without CUDA has as well, which are restored after a run in a notebook",
    "frameworks/lightning/train.py": "one of them, which Lightning's Trainer sets again",
}
LEVEL = {name: len(LAYERS) - level for level, names in enumerate(LAYERS) for name in names}


def imports(package: Path) -> dict[str, set[str]]:
    """Return which modules of a package each module imports, anywhere in its code."""
    files = {str(file.relative_to(package).with_suffix("")).replace("/", "."): file for file in package.rglob("*.py")}
    files = {name: file for name, file in files.items() if not name.startswith("tests.")}
    modules = {name.removesuffix(".__init__"): file for name, file in files.items()}
    return {name: {*_imported(name, file, modules)} - {name} for name, file in modules.items() if name != "__init__"}


def _imported(name: str, file: Path, modules: dict[str, Path]) -> list[str]:
    found = []
    parents = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            assert not [alias for alias in node.names if alias.name.split(".")[0] == "proj"], (
                f"{file}: use relative ones"
            )
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
        open_paths, seen = [[start]], {start}
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


@pytest.mark.parametrize(("framework", "model"), PROJECTS)
def test_imports_go_one_way(project: Project, framework: str, model: str) -> None:
    graph = imports(project(framework, model) / "src/proj")
    assert {name.split(".")[0] for name in graph} <= LEVEL.keys(), "a module without a layer"
    upward = [
        f"{name} imports {other}"
        for name, others in graph.items()
        for other in others
        if LEVEL[other.split(".")[0]] > LEVEL[name.split(".")[0]]
    ]
    assert upward == []
    assert cycles(graph) == []
    past_the_facade = [
        f"{name} imports {other}"
        for name, others in graph.items()
        for other in others
        if other.startswith("techniques.") and not name.startswith("techniques")
    ]
    assert past_the_facade == []


def test_upward_imports_and_cycles_are_found(tmp_path: Path) -> None:
    for name, text in {
        "data": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .tools.show import show\n",
        "tools/__init__": "",
        "tools/show": "def show():\n    from .. import errors\n    from ..data import load\n",
        "errors": "",
        "__init__": "",
    }.items():
        (tmp_path / name).with_suffix(".py").parent.mkdir(exist_ok=True)
        (tmp_path / name).with_suffix(".py").write_text(text)
    graph = imports(tmp_path)
    assert graph == {"data": {"tools.show"}, "tools": set(), "tools.show": {"errors", "data"}, "errors": set()}
    assert cycles(graph) == [["data", "tools.show", "data"], ["tools.show", "data", "tools.show"]]


def test_only_few_files_use_what_only_cuda_has() -> None:
    """All others use torch.accelerator, torch.Stream, torch.Event and torch.get_device_module."""
    package = TEMPLATE / "project/src/{{ package }}"
    files = [file for file in TEMPLATE.rglob("*") if {".py", ".jinja"} & {file.suffix} and "test" not in file.name]
    found = {file.relative_to(package if package in file.parents else TEMPLATE) for file in files if _uses_cuda(file)}
    assert {str(file) for file in found if "tests" not in file.parts} == MAY_USE_CUDA.keys()


def _uses_cuda(file: Path) -> bool:
    return ONLY_CUDA.search(file.read_text()) is not None


@pytest.mark.parametrize(
    "line",
    ["torch.cuda.Event()", "torch.backends.cudnn.benchmark = True", "from torch import cuda, nn", "import torch.cuda"],
)
def test_use_of_cuda_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.py").write_text(f"import torch\n{line}\n")
    assert _uses_cuda(tmp_path / "a.py")
