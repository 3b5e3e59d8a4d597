"""The modules of a project's package that the user's own files import, directly or not."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import PurePath

from . import trees
from .repository import Repository
from .trees import Tree


def imported(repository: Repository, files: Tree, own: Iterable[str]) -> set[str]:
    """Return the paths, among these files, of all modules that the own ones import; without these themselves.

    A file that is not valid Python imports nothing.
    """
    found: set[str] = set()
    left = list(own)
    while left:
        path = left.pop()
        source = trees.blob(repository, files[path].oid) if path in files else b""
        new = {module for module in _imports(source, path) if module in files} - found
        found |= new
        left += new
    return found - {*own}


def _imports(source: bytes, path: str) -> Iterator[str]:
    """Yield the paths at which the modules that a file imports may be."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return
    folder = PurePath(path).parent
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _places(_from_root(folder, alias.name), [])
        elif isinstance(node, ast.ImportFrom):
            parts = node.module.split(".") if node.module else []
            above = folder.parts[: len(folder.parts) - node.level + 1]
            module = PurePath(*above, *parts) if node.level else _from_root(folder, node.module or "")
            yield from _places(module, [alias.name for alias in node.names])


def _from_root(folder: PurePath, module: str) -> PurePath:
    """Return where a module would be that is imported by its full name from a file in a folder of its package."""
    first, *rest = module.split(".")
    above = next((it for it in (folder, *folder.parents) if it.name == first), PurePath("."))
    return PurePath(above, *rest)


def _places(module: PurePath, names: list[str]) -> Iterator[str]:
    """Yield the paths of a module, of the packages around it, and of the names that may be modules in it."""
    yield f"{module}.py"
    yield from (f"{module / name}.py" for name in names)
    for package in (module, *(module / name for name in names), *module.parents):
        yield f"{package}/__init__.py"
