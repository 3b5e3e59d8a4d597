"""Projects of releases without components: which ones their config files need."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from ..shared.yaml_file import read_yaml
from .linked import Linked
from .moved_options import TABLE, component_of
from .renderings import Rendering


def used_components(project: Linked, old: Rendering, new: Rendering) -> dict[str, list[str]]:
    """Return the components that options in configs/ need, each with these options.

    Options as an older release rendered them do not count, as the new recipe says what it needs. Empty unless the
    update brings the table of moved options.
    """
    table = _options(new.folder / new.prefix / "configs" / TABLE)
    if "components" in project.answers or not table:
        return {}
    found: dict[str, list[str]] = {}
    for file in sorted((project.root / "configs").glob("*.yaml")):
        rendered = _options(old.folder / old.prefix / "configs" / file.name)
        for option, value in _options(file).items():
            component = component_of(option, value, table)
            if component is not None and rendered.get(option) != value:
                found.setdefault(component, []).append(option)
    return found


def addable(used: dict[str, list[str]], new: Rendering, questions: dict[str, Any], given: dict[str, Any]) -> list[str]:
    """Return which of these components the new version has, unless the user chose some or they are there already."""
    if "components" in given:
        return []
    table, framework = questions.get("component_table", {}).get("default", {}), new.answers.get("framework")
    offered = [name for name, entry in table.items() if framework in entry.get("frameworks", [framework])]
    return [name for name in used if name in offered and name not in new.answers["components"]]


def _options(file: Path) -> dict[str, Any]:
    """Return the options that a config file sets, as `section.key`; none if it is not valid."""
    from yaml import YAMLError

    if not file.is_file():
        return {}
    with suppress(OSError, ValueError, YAMLError):
        content = read_yaml(file)
        if isinstance(content, dict):
            return dict(_flat(content))
    return {}


def _flat(content: dict[Any, Any]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for section, value in content.items():
        if isinstance(value, dict):
            found += [(f"{section}.{key}", it) for key, it in value.items()]
        else:
            found.append((str(section), value))
    return found
