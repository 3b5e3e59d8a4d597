"""Merge a newer rendering into the user's commit: git's three-way merge.

Its base is the old rendering. An edit of the user is never lost. In addition to what git does,
these stay as the user has them: deleted files; edited files that the template no longer has;
edited files that belong to the user (`_skip_if_exists`).
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from ..errors import FastprojError
from ..template.answers import ANSWERS_FILE
from .repository import Repository, Tree

# Whatever the user prefers, renamed files are followed, and the user's files stay in their folders.
_SETTINGS = {
    "merge.renames": "true",
    "merge.directoryRenames": "false",
    "merge.renameLimit": "32767",
}


@dataclass
class Merge:
    """The result of a merge."""

    head: str
    """The user's commit."""
    template: str
    """The commit of the template's changes."""
    tree: str = ""
    stages: list[str] = field(default_factory=list)
    """Unmerged entries, as `git update-index --index-info` reads them."""
    conflicts: list[str] = field(default_factory=list)
    """As git reports them."""
    changes: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)
    """The entries of each path that differs, in the user's commit and in the result."""
    renamed: dict[str, str] = field(default_factory=dict)
    """By the template."""
    notes: list[str] = field(default_factory=list)
    """About files that stay as the user has them."""

    @property
    def unmerged(self) -> set[str]:
        """The paths in conflict."""
        return {line.partition("\t")[2] for line in self.stages}


def merge(
    repository: Repository,
    old_tree: str,
    head: str,
    new_tree: str,
    own: set[str],
    message: str,
    work: Path,
) -> Merge:
    """Merge the changes between two renderings into the user's commit.

    `own` are the files that belong to the user; `work` is a scratch folder.
    """
    old = repository.files(old_tree)
    ours = repository.files(head)
    new = repository.files(new_tree)
    renames = repository.renames(old_tree, new_tree)
    renames_by_user = repository.renames(old_tree, head)
    missing = old.keys() - ours.keys() - renames_by_user.keys()

    # What stays as the user has it has no change between the two renderings.
    base = dict(old)
    theirs = dict(new)
    base[repository.prefix + ANSWERS_FILE] = ours[repository.prefix + ANSWERS_FILE]
    notes = []
    for path, (kind, reason) in _kept(old, ours, new, renames, missing, own).items():
        if new.get(path) != old.get(path):
            notes.append(f"{kind:9} {renames_by_user.get(path, path)}: {reason}")
        theirs.pop(path, None)
        if path in old:
            theirs[path] = old[path]
    for path in missing & renames.keys():
        theirs.pop(renames[path], None)

    parent = repository.commit(old_tree, base, [], message, work / "base.index")
    user = repository.commit(head, ours, [parent], message, work / "ours.index")
    template = repository.commit(new_tree, theirs, [parent], message, work / "theirs.index")
    result = Merge(head, template, notes=notes)
    _merge_tree(repository, work / "merge", user, result)

    after = repository.files(result.tree)
    for path in sorted(ours.keys() | after.keys()):
        if ours.get(path) != after.get(path):
            result.changes[path] = (ours.get(path), after.get(path))
    for was, now in renames.items():
        if was in ours and was not in after and now in after:
            result.renamed[was] = now
    return result


def _kept(
    old: Tree,
    ours: Tree,
    new: Tree,
    renames: dict[str, str],
    missing: set[str],
    own: set[str],
) -> dict[str, tuple[str, str]]:
    """Return the paths where the template's change is left out, each with what and why."""
    folders = _folders_of(new)
    kept = {}
    for path in sorted(missing - folders):
        reason = "stays deleted, although the template changed it"
        if path in renames:
            reason = f"stays deleted, also under its new name {renames[path]}"
        kept[path] = ("deleted", reason)
    for path in sorted(own & new.keys() - missing):
        if ours.get(path) != old.get(path):
            kept[path] = ("yours", "kept with your changes; the template has a newer version")
    gone = old.keys() - new.keys() - renames.keys()
    for path in sorted(gone - missing - folders):
        if ours.get(path) != old[path]:
            kept[path] = ("yours", "kept with your changes; it is no longer rendered")
    return kept


def _folders_of(paths: Iterable[str]) -> set[str]:
    """Return all folders around these paths."""
    folders: set[str] = set()
    for path in paths:
        folders.update(map(str, PurePath(path).parents))
    return folders


def _merge_tree(repository: Repository, folder: Path, user: str, result: Merge) -> None:
    """Let git merge, and parse its output.

    The folder becomes another work tree of the repository, in which HEAD and TEMPLATE are the names
    of the sides: git writes these into conflicts.
    """
    folder.mkdir()
    (folder / "commondir").write_bytes(os.fsencode(repository.common_dir) + b"\n")
    (folder / "HEAD").write_text(f"{user}\n")
    (folder / "TEMPLATE").write_text(f"{result.template}\n")
    done = repository.run(
        *["merge-tree", "--write-tree", "-z", "--messages", "HEAD", "TEMPLATE"],
        settings=_SETTINGS,
        variables={"GIT_DIR": folder, "GIT_WORK_TREE": repository.top},
    )
    parts = iter(os.fsdecode(done.stdout).split("\0")[:-1])
    # a merge driver may have printed something before
    result.tree = next(parts, "").rpartition("\n")[2]
    if done.returncode not in (0, 1) or not result.tree:
        raise FastprojError(f"git could not merge ({done.reason}): fix that, then try again")
    result.stages = list(_until_empty(parts))
    for count in parts:
        for _ in range(int(count)):
            next(parts)  # paths, which the message names
        kind = next(parts)
        text = next(parts).strip()
        if kind.startswith("CONFLICT"):
            result.conflicts.append(text)


def _until_empty(parts: Iterable[str]) -> Iterable[str]:
    for part in parts:
        if not part:
            return
        yield part
