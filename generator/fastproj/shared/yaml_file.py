"""Read YAML that is not trusted: an answers file, or the questions of a template."""

from datetime import date
from pathlib import Path
from typing import Any

from .answers import ANSWERS_FILE
from .errors import FastprojError

_MAX_BYTES, _MAX_DEPTH = 1 << 20, 50
_LAST = f"$(git log -1 --diff-filter=AM --format=%h -- {ANSWERS_FILE})"
RESTORE = f"go to a project that fastproj rendered, or restore the file: git checkout {_LAST} -- {ANSWERS_FILE}"


def read_yaml(file: Path) -> Any:
    """Return the content of a YAML file; `_commit` is text even if the tag looks like a number or a date.

    Raises:
        ValueError: it is not YAML in UTF-8, or too large or deep to be what it should be.
        OSError: it cannot be read.
    """
    import yaml  # 20 ms, which `--version` and `detect` do not need

    if file.exists() and not file.is_file():
        raise ValueError("not a file")  # to open a pipe, for example, would wait forever
    with file.open("rb") as opened:
        content = opened.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError("larger than 1 MiB")
    text, loader = content.decode(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the fast one is not in every build
    try:
        depth = 0
        for event in yaml.parse(text, loader):  # which does not recurse, unlike the loader
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:
                raise ValueError(f"nested more than {_MAX_DEPTH} levels deep")
            if isinstance(event, yaml.AliasEvent):
                raise ValueError(f"it uses the alias *{event.anchor}: write its value there")
        found = yaml.load(text, loader)  # noqa: S506
    except (yaml.YAMLError, OverflowError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    if isinstance(found, dict) and isinstance(found.get("_commit"), int | float | date):
        found["_commit"] = yaml.load(text, yaml.BaseLoader)["_commit"]  # noqa: S506
    return found


def read_answers(file: Path) -> dict[str, Any]:
    """Return the content of an answers file."""
    try:
        recorded = read_yaml(file)
    except (OSError, ValueError) as error:
        raise FastprojError(f"cannot read {file} ({' '.join(str(error).split())}): {RESTORE}") from error
    if not isinstance(recorded, dict):
        raise FastprojError(f"{file} holds no answers: {RESTORE}")
    return recorded


def answers_in(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return the answers of an answers file, without copier's own entries."""
    return {str(key): value for key, value in recorded.items() if not str(key).startswith("_")}
