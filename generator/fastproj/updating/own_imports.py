"""The modules of a project's package that the user's own files import, directly or not."""

import ast
from collections.abc import Iterable
from pathlib import PurePath

from .repository import Repository, Tree


def imported(repository: Repository, files: Tree, own: Iterable[str]) -> set[str]:
    """Return the paths, among these files, of the modules whose names the own ones import; without these themselves."""
    found, left = set[str](), [path for path in own if path in files]
    while left:
        names = _imported_names(repository.blob(files[left.pop()]))
        new = {path for path in files if _module(path) in names} - found
        found |= new
        left += new
    return found - {*own}


def _module(path: str) -> str:
    place = PurePath(path)
    return place.parent.name if place.name == "__init__.py" else place.stem if place.suffix == ".py" else ""


def _imported_names(source: bytes) -> set[str]:
    """Return each part of the names that a file imports; none if it is not valid Python."""
    try:
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    except (SyntaxError, ValueError):
        return set()
    names = [alias.name for node in nodes for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {part for name in names for part in name.split(".")} - {""}
