"""Files that the user converted to CRLF line endings are merged with LF, and then converted again."""

import re
from collections.abc import Mapping

from . import trees
from .repository import Repository
from .trees import LINK, SUBMODULE, Edits, Entry, Tree


def as_lf(repository: Repository, base: Tree, ours: Tree) -> dict[str, Entry]:
    """Return the files that the user converted to CRLF line endings, with LF instead."""
    found: dict[str, Entry] = {}
    renamed = bool(base.keys() - ours.keys())  # possibly to a name that is not in the template
    for path in sorted(trees.with_crlf(repository) & ours.keys()):
        if base.get(path) == ours[path] or not (path in base or renamed):
            continue
        if path not in base or b"\r\n" not in trees.blob(repository, base[path].oid):
            content = trees.blob(repository, ours[path].oid).replace(b"\r\n", b"\n")
            found[path] = Entry(ours[path].mode, trees.store(repository, content))
    return found


def as_crlf(
    repository: Repository, tree: str, lf: Mapping[str, Entry], ours: Tree, *renames: Mapping[str, str]
) -> Edits:
    """Return the same files as they were merged, with CRLF line endings again."""
    present = trees.files(repository, tree) if lf else {}
    found: dict[str, Entry | None] = {}
    for was, entry in lf.items():
        moved, detected = (it.get(was, was) for it in renames)
        path = next((it for it in (moved, was, detected) if it in present), None)
        if path is None or (merged := present[path]).mode in (LINK, SUBMODULE):
            continue
        oid = ours[was].oid
        if merged.oid != entry.oid:
            oid = trees.store(repository, re.sub(rb"\r?\n", b"\r\n", trees.blob(repository, merged.oid)))
        found[path] = Entry(merged.mode, oid)
    return found
