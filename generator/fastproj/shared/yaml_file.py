"""Read YAML that is not trusted: an answers file, or the questions of a template."""

from datetime import date
from pathlib import Path
from typing import Any

MAX_BYTES, MAX_DEPTH, MAX_NODES = 1 << 20, 50, 20_000


def read_yaml(file: Path) -> Any:
    """Return the content of a YAML file; `_commit` is text even if the tag looks like a number or a date.

    Raises:
        ValueError: it is not YAML in UTF-8, or too large, deep or repetitive to be what it should be.
        yaml.constructor.ConstructorError: it has tags of its own.
        OSError: it cannot be read.
    """
    import yaml  # 20 ms, which `--version` and `detect` do not need

    if file.exists() and not file.is_file():
        raise ValueError("not a file")  # to open a pipe, for example, would wait forever
    with file.open("rb") as opened:
        content = opened.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError("larger than 1 MiB")
    text, loader = content.decode(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the fast one is not in every build
    try:
        depth = 0
        # The parser does not recurse, unlike the loader, which a deep file crashes.
        for number, event in enumerate(yaml.parse(text, loader)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH or number > 3 * MAX_NODES:
                raise ValueError(f"nested more than {MAX_DEPTH} levels deep, or more than {MAX_NODES} values")
        found = yaml.load(text, loader)  # noqa: S506
    except yaml.constructor.ConstructorError:
        raise
    except (yaml.YAMLError, OverflowError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    left, nodes = [found], 0
    while left:  # an alias repeats what it stands for
        one, nodes = left.pop(), nodes + 1
        left += one.values() if isinstance(one, dict) else one if isinstance(one, list) else []
        if nodes > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES} values, with YAML aliases repeated")
    if isinstance(found, dict) and isinstance(found.get("_commit"), int | float | date):
        found["_commit"] = yaml.load(text, yaml.BaseLoader)["_commit"]  # noqa: S506
    return found
