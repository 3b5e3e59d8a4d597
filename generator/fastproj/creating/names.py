"""Checks that a project's name is safe as a folder and as a Python package, and shadows no dependency."""

import keyword
import re
import sys

from ..errors import UsageError

LONGEST = 60

# What rendered projects require and import, and tools that they use: a package of that name would
# hide it.
_DEPENDENCIES = {
    "accelerate", "alembic", "conftest", "copier", "fastproj", "fastproj_cli", "jsonargparse", "lightning",
    "matplotlib", "mlflow", "mlflow_skinny", "mypy", "numpy", "onnxruntime", "onnxscript", "optuna", "packaging",
    "pandas", "pandas_stubs", "peft", "pil", "pillow", "pip", "pyarrow", "pytest", "pytest_timeout",
    "pytorch_lightning", "pytorch_optimizer", "pyyaml", "ray", "ruff", "safetensors", "scikit_learn", "scipy",
    "setuptools", "sklearn", "sqlalchemy", "tensorboard", "tokenizers", "torch", "torchao", "torchmetrics", "torchrun",
    "torchvision", "tqdm", "trackio", "transformers", "types_pyyaml", "types_tqdm", "wandb", "yaml",
}  # fmt: skip

# Folders of a project, which Python would import instead of the package.
_FOLDERS = {"build", "configs", "dist", "docs", "launch", "runs", "src", "test", "tests", "tools"}


def check(name: str) -> None:
    """Check that a project may have this name; the error says why not, and suggests another one if it can."""
    if problem := _problem(name):
        plain = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_0123456789")
        suggestion = "" if _problem(plain) else f", for example {plain}"
        raise UsageError(f"the project's name {name[:LONGEST]!r} is {problem}{suggestion}")


def _problem(name: str) -> str:
    if not re.fullmatch(r"[a-z]([a-z0-9_-]*[a-z0-9])?", name) or len(name) > LONGEST:
        allowed = f"use at most {LONGEST} lowercase letters, digits, - and _"
        return f"not allowed: {allowed}, starting with a letter and ending with a letter or digit"
    package = name.replace("-", "_")
    reasons = {
        "a Python keyword": keyword.iskeyword(package) or keyword.issoftkeyword(package),
        "a module of Python's standard library": package in sys.stdlib_module_names,
        "a package that the project uses": package in _DEPENDENCIES,
        "a folder in the project": package in _FOLDERS,
    }
    return next(
        (
            f"{it}: choose another, such as my-{package}"
            for it, applies in reasons.items()
            if applies
        ),
        "",
    )
