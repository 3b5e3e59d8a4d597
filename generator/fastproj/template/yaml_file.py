"""Read YAML: an answers file, or the questions of a template."""

from datetime import date
from pathlib import Path
from typing import Any

from ..errors import FastprojError
from .answers import ANSWERS_FILE, Answers

RESTORE = (
    "go to a project that fastproj rendered, or restore the file "
    f"(git log -p -- {ANSWERS_FILE} shows what it was)"
)


def read_yaml(file: Path) -> dict[Any, Any]:
    """Return the content of a YAML file; `_commit` is text even if it looks like a number or date.

    Raises:
        ValueError: it is not a mapping in YAML and UTF-8.
        OSError: it cannot be read.
    """
    import yaml  # 20 ms, which `--version` and `detect` do not need

    text = file.read_bytes().decode()
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, OverflowError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    if not isinstance(content, dict):
        raise ValueError("no keys and values")
    if isinstance(content.get("_commit"), int | float | date):
        content["_commit"] = yaml.load(text, yaml.BaseLoader)["_commit"]  # noqa: S506
    return content


def expanded_size(value: Any, sizes: dict[int, int]) -> int:
    """Count the values of a structure; what an alias stands for counts each time.

    `sizes` has the parts that are counted already.
    """
    if not isinstance(value, dict | list | tuple | set):
        return 1
    if id(value) not in sizes:
        sizes[id(value)] = 0  # an alias in what it stands for
        parts = value.values() if isinstance(value, dict) else value
        sizes[id(value)] = 1 + sum(expanded_size(part, sizes) for part in parts)
    return sizes[id(value)]


def read_answers(file: Path) -> Answers:
    """Return the content of an answers file; aliases, which can be gigabytes, are refused."""
    import yaml

    try:
        content = read_yaml(file)
        for event in yaml.parse(file.read_bytes(), yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("it has an alias: write its value there")
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise FastprojError(f"cannot read {file} ({reason}): {RESTORE}") from error
    return content


def without_own_entries(recorded: Answers) -> Answers:
    """Return the answers of an answers file, without copier's own entries."""
    answers = {}
    for key, value in recorded.items():
        if not str(key).startswith("_"):
            answers[str(key)] = value
    return answers
