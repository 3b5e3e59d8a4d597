"""Checks that a project's name is safe as a folder and a package, and shadows no dependency."""

import keyword
import re
import sys

from ..errors import UsageError

LONGEST = 60

_DEPENDENCIES = """
accelerate alembic conftest copier fastproj fastproj_cli jsonargparse lightning matplotlib mlflow
mlflow_skinny mypy numpy onnxruntime onnxscript optuna packaging pandas pandas_stubs peft pil
pillow pip pyarrow pytest pytest_timeout pytorch_lightning pytorch_optimizer pyyaml ray ruff
safetensors scikit_learn scipy setuptools simplejpeg sklearn sqlalchemy tensorboard tokenizers
torch torchao torchmetrics torchrun torchvision tqdm trackio transformers types_pyyaml types_tqdm
wandb yaml
"""
"""What rendered projects import, and their tools: a package of that name would hide it."""

_FOLDERS = "build configs dist docs launch runs src test tests tools"
"""Folders of a project, which Python would import instead of the package."""


def check(name: str) -> None:
    """Check a project's name; the error says why not, and suggests another one if it can."""
    if problem := _problem(name):
        plain = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")
        plain = f"p{plain}" if plain[:1].isdigit() else plain
        suggestion = "" if _problem(plain) else f", for example {plain}"
        raise UsageError(f"the project's name {name[:LONGEST]!r} is {problem}{suggestion}")


def _problem(name: str) -> str:
    if not re.fullmatch(r"[a-z]([a-z0-9_-]*[a-z0-9])?", name) or len(name) > LONGEST:
        allowed = f"use at most {LONGEST} lowercase letters, digits, - and _"
        return f"not allowed: {allowed}, from a letter to a letter or digit"
    package = name.replace("-", "_")
    if keyword.iskeyword(package) or keyword.issoftkeyword(package):
        reason = "a Python keyword"
    elif package in sys.stdlib_module_names:
        reason = "a module of Python's standard library"
    elif package in _DEPENDENCIES.split():
        reason = "a package that the project uses"
    elif package in _FOLDERS.split():
        reason = "a folder in the project"
    else:
        return ""
    return f"{reason}: choose another, such as my-{package}"
