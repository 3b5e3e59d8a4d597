"""Merge a newer rendering into the user's commit: git's three-way merge, with the old rendering as its base.

An edit of the user is never lost. In addition to what git does, these stay as the user has them:
deleted files; edited files that the template no longer has; edited files that belong to the user
(`_skip_if_exists`).
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from ..errors import FastprojError
from ..template.answers import ANSWERS_FILE
from .repository import Repository, Tree

# Whatever the user prefers, renamed files are followed, and the user's files stay in their folders.
_SETTINGS = [
    "-c",
    "merge.renames=true",
    "-c",
    "merge.directoryRenames=false",
    "-c",
    "merge.renameLimit=32767",
]


@dataclass
class Merged:
    """The result of a merge."""

    head: str  # the user's commit
    template: str = ""  # the commit of the template's changes
    tree: str = ""
    # by path: entries in both
    changes: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)
    # unmerged entries, as `git update-index --index-info` reads them
    stages: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)  # as git reports them
    renamed: dict[str, str] = field(default_factory=dict)  # by the template
    notes: list[str] = field(default_factory=list)  # about files that stay as the user has them

    @property
    def unmerged(self) -> set[str]:
        """The paths in conflict."""
        return {line.partition("\t")[2] for line in self.stages}


def merge(
    repository: Repository, trees: tuple[str, str, str], own: set[str], message: str, work: Path
) -> Merged:
    """Merge the template's changes into a commit.

    The trees are the old rendering, the user's commit and the new rendering; `own` are the files
    that belong to the user. `work` is a scratch folder.
    """
    merged = Merged(trees[1])
    old, ours, new = (repository.files(tree) for tree in trees)
    by_user = {
        was: now
        for was, now in repository.renames(*trees[:2]).items()
        if was in old and was not in ours
    }
    renames = repository.renames(trees[0], trees[2])
    base, theirs = dict(old), dict(new)
    # nobody edits them
    base[repository.prefix + ANSWERS_FILE] = ours[repository.prefix + ANSWERS_FILE]
    for path, why in _kept((old, ours, new), renames, by_user, own).items():
        theirs.pop(path, None)
        theirs.update({path: old[path]} if path in old else {})
        merged.notes += (
            [why.format(by_user.get(path, path), renames.get(path))]
            if new.get(path) != old.get(path)
            else []
        )
    for path in old.keys() - ours.keys() - by_user.keys():
        theirs.pop(renames.get(path, ""), None)
    parent = repository.commit(trees[0], base, [], message, work / "base.index")
    head = repository.commit(trees[1], ours, [parent], message, work / "ours.index")
    merged.template = repository.commit(trees[2], theirs, [parent], message, work / "theirs.index")
    _merge_tree(repository, work / "merge", head, merged)
    result = repository.files(merged.tree)
    entries = {
        path: (ours.get(path), result.get(path)) for path in sorted(ours.keys() | result.keys())
    }
    merged.changes = {path: pair for path, pair in entries.items() if pair[0] != pair[1]}
    merged.renamed = {
        was: now for was, now in renames.items() if merged.changes.get(was, ("", ""))[1] is None
    }
    return merged


def _kept(
    trees: tuple[Tree, Tree, Tree], renames: dict[str, str], by_user: dict[str, str], own: set[str]
) -> dict[str, str]:
    """Return the paths at which the template's change is left out, with the reason as a format for the path."""
    old, ours, new = trees
    deleted = old.keys() - ours.keys() - by_user.keys() - _folders_of(new)
    kept = {path for path in own & new.keys() - deleted if ours.get(path) != old.get(path)}
    gone = old.keys() - deleted - new.keys() - renames.keys() - _folders_of(new)
    edited = {path for path in gone if ours.get(path) != old[path]}
    found = dict.fromkeys(
        sorted(deleted), "deleted   {}: stays deleted, although the template changed it"
    )
    found |= dict.fromkeys(
        deleted & renames.keys(), "deleted   {}: stays deleted, also under its new name {}"
    )
    found |= dict.fromkeys(
        sorted(kept), "yours     {}: kept with your changes; the template has a newer version"
    )
    return found | dict.fromkeys(
        sorted(edited), "yours     {}: kept with your changes; it is no longer rendered"
    )


def _merge_tree(repository: Repository, folder: Path, head: str, merged: Merged) -> None:
    """Let git merge, and parse its output.

    The folder becomes another work tree of the repository, in which HEAD and TEMPLATE are the names
    of the sides: git writes these into conflicts.
    """
    folder.mkdir()
    (folder / "commondir").write_bytes(os.fsencode(repository.common_dir) + b"\n")
    (folder / "HEAD").write_text(f"{head}\n")
    (folder / "TEMPLATE").write_text(f"{merged.template}\n")
    variables = {"GIT_DIR": folder, "GIT_WORK_TREE": repository.top}
    command = [*_SETTINGS, "merge-tree", "--write-tree", "-z", "--messages", "HEAD", "TEMPLATE"]
    done = repository.run(*command, variables=variables)
    parts = iter(os.fsdecode(done.stdout).split("\0")[:-1])
    # a merge driver may have printed something before
    merged.tree = next(parts, "").rpartition("\n")[2]
    if done.returncode not in (0, 1) or not merged.tree:
        raise FastprojError(f"git could not merge ({done.reason}): fix that, then try again")
    merged.stages = list(iter(lambda: next(parts, ""), ""))
    for number in parts:
        _, kind, reason = (
            [next(parts) for _ in range(int(number))],
            next(parts),
            next(parts).strip(),
        )
        merged.conflicts += [reason] if kind.startswith("CONFLICT") else []


def _folders_of(paths: Iterable[str]) -> set[str]:
    """Return all folders around these paths."""
    return {str(folder) for path in paths for folder in PurePath(path).parents}
