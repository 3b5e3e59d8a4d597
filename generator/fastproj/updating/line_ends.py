"""Files that the user converted to CRLF line endings are merged with renderings that have CRLF too."""

import re
from collections.abc import Mapping
from pathlib import Path

from .repository import Repository, Tree


def with_users_line_ends(
    repository: Repository, old: str, new: str, ours: Tree, renames: Mapping[str, str], index: Path
) -> tuple[str, str]:
    """Return the trees of both renderings with the line endings of the user; `index` is a scratch file."""
    lines = repository.lines("ls-files", "--cached", "--eol", "-z", "--", repository.prefix or ".")
    crlf = {line.partition("\t")[2] for line in lines if line.startswith("i/crlf ")} & ours.keys()
    base, theirs = (repository.files(tree) for tree in (old, new))
    converted = {path for path in crlf & base.keys() if base[path] != ours[path]}
    if crlf - base.keys():  # possibly renamed by the user
        converted |= base.keys() - ours.keys()
    old_edits, new_edits = dict[str, bytes](), dict[str, bytes]()
    for path in sorted(converted):
        content, now = repository.blob(base[path]), renames.get(path, path)
        if b"\0" in content or b"\r\n" in content:
            continue
        old_edits[path] = content.replace(b"\n", b"\r\n")
        if now in theirs:
            new_edits[now] = re.sub(rb"\r?\n", b"\r\n", repository.blob(theirs[now]))
    return repository.tree_with(old, old_edits, index), repository.tree_with(new, new_edits, index)
