"""Files that the template renamed, as its table `renamed` lists them."""

from collections.abc import Mapping

from .trees import Tree


def listed_renames(renamed: Mapping[str, str], base: Tree, theirs: Tree) -> dict[str, str]:
    """Return the files that the template renamed between two renderings, as it lists them."""
    found = {}
    for was in base:
        now = _new_name(was, renamed)
        for _ in renamed:  # a file may have been renamed several times
            now = _new_name(now, renamed) if now is not None and now not in theirs else now
        if now in theirs and now not in base:
            found[was] = now
    return found


def _new_name(path: str, renamed: Mapping[str, str]) -> str | None:
    """Return the next name of a file; a table entry that ends in `/` renames a folder."""
    if path in renamed:
        return renamed[path]
    folder = next((folder for folder in renamed if folder.endswith("/") and path.startswith(folder)), None)
    return renamed[folder] + path.removeprefix(folder) if folder else None
