"""Files that the template renamed, as its table `renamed` lists them."""

from collections.abc import Iterable, Mapping
from pathlib import PurePath

from .repository import Tree


def listed_renames(table: Mapping[str, str], base: Tree, theirs: Tree) -> dict[str, str]:
    """Return the files that the template renamed between two renderings, as it lists them."""
    found = {}
    for was in base:
        now = _new_name(was, table)
        for _ in table:  # a file may have been renamed several times
            now = _new_name(now, table) if now is not None and now not in theirs else now
        if now in theirs and now not in base:
            found[was] = now
    return found


def _new_name(path: str, table: Mapping[str, str]) -> str | None:
    """Return the next name of a file; a table entry that ends in `/` renames a folder."""
    if path in table:
        return table[path]
    folder = next((folder for folder in table if folder.endswith("/") and path.startswith(folder)), None)
    return table[folder] + path.removeprefix(folder) if folder else None


def free_renames(listed: Mapping[str, str], ours: Tree, by_user: Mapping[str, str]) -> dict[str, str]:
    """Return the renames whose new path is free in the user's files, or is where the user moved the same file."""
    taken = ours.keys() | folders_of(ours)

    def is_free(was: str, now: str) -> bool:
        return by_user.get(was) == now or not ({now} & taken or {str(it) for it in PurePath(now).parents} & ours.keys())

    return {was: now for was, now in listed.items() if is_free(was, now)}


def folders_of(files: Iterable[str]) -> set[str]:
    """Return all folders that contain one of the files."""
    return {str(folder) for path in files for folder in PurePath(path).parents}
