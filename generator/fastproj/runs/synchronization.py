"""Calls in the project's model and data that make the host wait for the GPU in each step.

Rows cannot tell them.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from ..shared.answers import ANSWERS_FILE

FILES = ("model.py", "data.py", "module.py")
STEPS = ("forward", "training_step")
WAITING = ("item", "tolist", "cpu", "numpy")
"""Methods of a tensor that wait until the GPU has computed it."""


def waiting_calls(run: Path) -> list[str]:
    """Return a sentence for each call in a training step of the project around a run's folder, if there is one."""
    project = next((it for it in run.resolve().parents if (it / ANSWERS_FILE).is_file()), None)
    files = (
        [file for name in FILES for file in sorted(project.glob(f"src/*/{name}"))]
        if project
        else []
    )
    return [
        f"{file.name}, line {line}: .{method}() in {function} makes each step wait for the GPU; keep the tensor."
        for file in files
        for line, method, function in _calls(file)
    ]


def _calls(file: Path) -> Iterator[tuple[int, str, str]]:
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return  # the owner edits it
    steps = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in STEPS
    ]
    for step in steps:
        for node in ast.walk(step):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in WAITING
            ):
                yield node.lineno, node.func.attr, step.name
