"""The answers file of a project, in which copier records the template, its version and the answers."""

from pathlib import Path
from typing import Any

from .answers import ANSWERS_FILE
from .errors import FastprojError
from .yaml_file import read_yaml

_LAST = f"$(git log -1 --diff-filter=AM --format=%h -- {ANSWERS_FILE})"
RESTORE = f"go to a project that fastproj rendered, or restore the file: git checkout {_LAST} -- {ANSWERS_FILE}"


def read_answers(file: Path) -> dict[str, Any]:
    """Return the content of an answers file."""
    import yaml  # 20 ms, which `--help` does not need

    try:
        recorded = read_yaml(file)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise FastprojError(f"cannot read {file} ({' '.join(str(error).split())}): {RESTORE}") from error
    if not isinstance(recorded, dict):
        raise FastprojError(f"{file} holds no answers: {RESTORE}")
    return recorded


def answers_in(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return the answers of an answers file, without copier's own entries."""
    return {str(key): value for key, value in recorded.items() if not str(key).startswith("_")}
