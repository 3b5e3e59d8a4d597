"""Merge a newer rendering into the user's commit: git's three-way merge.

Its base is the old rendering. An edit of the user is never lost. In addition to what git does,
these stay as the user has them: deleted files; edited files that the template no longer has;
edited files that belong to the user (`_skip_if_exists`).
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from ..errors import FastprojError
from .repository import Repository, Tree

# Whatever the user prefers, renamed files are followed, and the user's files stay in their folders.
_SETTINGS = {
    "merge.renames": "true",
    "merge.directoryRenames": "false",
    "merge.renameLimit": "32767",
}


@dataclass(frozen=True)
class Renderings:
    """The two renderings, as trees."""

    old: Tree
    new: Tree
    renames: dict[str, str]
    """By the template."""
    renames_by_user: dict[str, str]
    """From the old rendering to the user's commit."""


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
    undo: str = ""
    """The command of git that undoes it and keeps later changes; empty if there is none."""

    @property
    def unmerged(self) -> set[str]:
        """The paths in conflict."""
        return {line.partition("\t")[2] for line in self.stages}

    @property
    def unmerged_entries(self) -> list[str]:
        """The paths in conflict, and their entries."""
        removed = [f"0 {'0' * len(self.head)}\t{path}" for path in sorted(self.unmerged)]
        return [*removed, *self.stages]


def merge(
    repository: Repository,
    renderings: Renderings,
    head: str,
    own: dict[str, str],
    message: str,
    work: Path,
) -> Merge:
    """Merge the changes between two renderings into the user's commit.

    `own` are files that belong to the user, each with what the output says of it; `work` is a
    scratch folder.
    """
    files = repository.files(head)
    moved, notes = _follow_moved_folders(repository, renderings, files)
    old = _at_places(renderings.old, moved)
    new = _at_places(renderings.new, moved)
    renames = _moved_renames(renderings.renames, moved)
    renames_by_user = _moved_renames(renderings.renames_by_user, moved)
    own = _at_places(own, moved)
    missing = old.keys() - files.keys() - renames_by_user.keys()

    base = old | {repository.answers_file: files[repository.answers_file]}
    theirs = dict(new)
    kept = _kept(old, files, new, renames, missing, own)
    for path, (kind, reason) in kept.items():
        if new.get(path) != old.get(path):
            notes.append(f"{kind:9} {renames_by_user.get(path, path)}: {reason}")
        # without a change between the two renderings
        theirs.pop(path, None)
        theirs |= {path: old[path]} if path in old else {}
    for was, now in renames.items():
        blocking = files.keys() & _folders_of([now])
        if was in missing:
            theirs.pop(now, None)
        elif blocking and now in theirs:  # git could merge this, but not undo it
            theirs[was] = theirs.pop(now)
            reason = f"is not renamed to {now}, as {min(blocking)} is no folder here"
            notes.append(f"yours     {renames_by_user.get(was, was)}: {reason}")

    parent = repository.commit(head, base, [], message, work / "base.index")
    user = repository.commit(head, files, [parent], message, work / "ours.index")
    template = repository.commit(head, theirs, [parent], message, work / "theirs.index")
    result = Merge(head, template, notes=notes)
    _merge_tree(repository, work / "merge", user, result)

    after = repository.files(result.tree)
    result.changes = _changes(files, after)
    left = files.keys() - after.keys()
    result.renamed = {was: now for was, now in renames.items() if was in left and now in after}
    return result


def _changes(
    before: Tree,
    after: Tree,
) -> dict[str, tuple[str | None, str | None]]:
    paths = sorted(before.keys() | after.keys())
    entries = {path: (before.get(path), after.get(path)) for path in paths}
    return {path: (was, now) for path, (was, now) in entries.items() if was != now}


def _follow_moved_folders(
    repository: Repository,
    renderings: Renderings,
    files: Tree,
) -> tuple[dict[str, str], list[str]]:
    """Return where the user has each rendered path, and notes on folders that new files follow."""
    places = _moved_folders(renderings.old, files, renderings.renames_by_user)
    folders = {was: now for was, now in places.items() if now.startswith(repository.prefix)}
    by_template = _moved_folders(renderings.old, renderings.new, renderings.renames)
    for folder in folders.keys() & by_template.keys():  # renamed by both: the user's name stays
        folders[by_template[folder]] = folders[folder]
    rendered = renderings.old | renderings.new
    moved = {path: path for path in rendered}
    notes = set()
    taken = set(rendered)
    lost = rendered.keys() - files.keys()
    for path in sorted(lost, key=lambda path: (path in renderings.new, path not in renderings.old)):
        around = [str(folder) for folder in PurePath(path).parents if str(folder) in folders]
        if not around:
            continue
        target = folders[around[0]] + path[len(around[0]) :]
        if target in taken:
            continue
        moved[path] = target
        if path in renderings.new:
            taken.add(target)
        if path not in renderings.old:
            notes.add(f"moved     {around[0]} is {folders[around[0]]} here: new files go there")
    return moved, sorted(notes)


def _moved_folders(
    old: Tree,
    files: Tree,
    renames: dict[str, str],
) -> dict[str, str]:
    """Return the folders of the old rendering that were moved, and where to.

    More than half of the files of such a folder are in another one, at the same places.
    """
    places: dict[str, Counter[str]] = defaultdict(Counter)
    for was in old:
        now = was if was in files else renames.get(was)
        for parent in PurePath(was).parents if now else ():
            rest = was[len(str(parent)) :]
            is_same = now is not None and now.endswith(rest)
            places[str(parent)][str(now).removesuffix(rest) if is_same else ""] += 1
    moved = {}
    for folder, targets in places.items():
        target, votes = targets.most_common(1)[0]
        if target not in ("", folder) and 2 * votes > targets.total() and folder != ".":
            moved[folder] = target
    return moved


def _at_places(
    texts: dict[str, str],
    moved: dict[str, str],
) -> dict[str, str]:
    return {moved[path]: text for path, text in texts.items()}


def _moved_renames(
    renames: dict[str, str],
    moved: dict[str, str],
) -> dict[str, str]:
    pairs = {moved[was]: moved.get(now, now) for was, now in renames.items()}
    return {was: now for was, now in pairs.items() if was != now}


def _kept(
    old: Tree,
    ours: Tree,
    new: Tree,
    renames: dict[str, str],
    missing: set[str],
    own: dict[str, str],
) -> dict[str, tuple[str, str]]:
    """Return the paths where the template's change is left out, each with what and why."""
    folders = _folders_of(new)
    kept = {}
    for path in sorted(missing - folders):
        reason = "stays deleted, although the template changed it"
        if path in renames:
            reason = f"stays deleted, also under its new name {renames[path]}"
        kept[path] = ("deleted", reason)
    for path in sorted(own.keys() & (old.keys() | new.keys()) - missing):
        if ours.get(path) != old.get(path) or path not in new:
            kept[path] = ("yours", own[path])
    gone = old.keys() - new.keys() - renames.keys()
    for path in sorted(gone - missing - folders - own.keys()):
        if ours.get(path) != old[path]:
            kept[path] = ("yours", "kept with your changes; it is no longer rendered")
    return kept


def _folders_of(paths: Iterable[str]) -> set[str]:
    """Return all folders around these paths."""
    folders: set[str] = set()
    for path in paths:
        folders.update(map(str, PurePath(path).parents))
    return folders


def _merge_tree(
    repository: Repository,
    folder: Path,
    user: str,
    result: Merge,
) -> None:
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
