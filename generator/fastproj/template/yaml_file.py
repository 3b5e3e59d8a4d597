"""Read YAML: an answers file, or the questions of a template."""

from datetime import date
from pathlib import Path
from typing import Any

from ..errors import FastprojError
from .answers import ANSWERS_FILE

_LAST = f"$(git log -1 --diff-filter=AM --format=%h -- {ANSWERS_FILE})"
RESTORE = f"go to a project that fastproj rendered, or restore the file: git checkout {_LAST} -- {ANSWERS_FILE}"


def read_yaml(file: Path) -> dict[Any, Any]:
    """Return the content of a YAML file; `_commit` is text even if the tag looks like a number or a date.

    Raises:
        ValueError: it is not a mapping in YAML and UTF-8.
        OSError: it cannot be read.
    """
    import yaml  # 20 ms, which `--version` and `detect` do not need

    text = file.read_bytes().decode()
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, OverflowError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    if not isinstance(found, dict):
        raise ValueError("no keys and values")
    if isinstance(found.get("_commit"), int | float | date):
        found["_commit"] = yaml.load(text, yaml.BaseLoader)["_commit"]  # noqa: S506
    return found


def read_answers(file: Path) -> dict[str, Any]:
    """Return the content of an answers file; aliases, of which few lines can be gigabytes, are refused."""
    import yaml

    try:
        found = read_yaml(file)
        if any(
            isinstance(event, yaml.AliasEvent)
            for event in yaml.parse(file.read_bytes(), yaml.SafeLoader)
        ):
            raise ValueError("it has an alias: write its value there")
        return found
    except (OSError, ValueError) as error:
        raise FastprojError(
            f"cannot read {file} ({' '.join(str(error).split())}): {RESTORE}"
        ) from error


def without_own_entries(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return the answers of an answers file, without copier's own entries."""
    return {str(key): value for key, value in recorded.items() if not str(key).startswith("_")}
