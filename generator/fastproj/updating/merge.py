"""Merge a newer rendering into the user's commit: git's three-way merge, with the old rendering as its base.

An edit of the user is never lost. In addition to what git does:
- a file that the template renamed, and lists as `renamed` in its copier.yml, is merged under its new name, however
  much of it was rewritten;
- a file that the user deleted stays deleted, even if the template changed or renamed it;
- a file that the user edited and the template no longer has stays, and is the user's now;
- a file that belongs to the user (`_skip_if_exists`) and was changed is left alone, unless an answer replaces it;
- a module that such a file imports stays if the template no longer has it;
- a file that the user converted to CRLF is merged line by line, and keeps its line endings.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

from ..shared.errors import FastprojError
from . import trees
from .line_ends import as_crlf, as_lf
from .linked import with_comments
from .own_imports import imported
from .renaming import listed_renames
from .repository import Head, Repository
from .trees import Change, Edits, Entry, Stages, Tree


@dataclass(frozen=True)
class Conflict:
    """Paths that git could not merge, and the reason."""

    paths: tuple[str, ...]
    kind: str
    reason: str


@dataclass(frozen=True)
class Merged:
    """The result of a merge."""

    head: Head
    tree: str
    changes: list[Change]
    stages: Stages
    conflicts: list[Conflict]
    renamed: dict[str, str]
    """Files that the template renamed."""
    stay_deleted: list[str]
    stay_own: list[str]
    stay_edited: list[str]
    """Files that the user edited and the template no longer has."""
    stay_imported: list[str]
    """Modules that a file of the user imports and the template no longer has."""


def merge(
    repository: Repository,
    old: str,
    new: str,
    version: str,
    answers_path: str,
    renamed: Mapping[str, str],
    own: Callable[[str], bool],
    replaced: Callable[[str], bool],
    work: Path,
) -> Merged:
    """Merge the changes from one rendered tree to another into the last commit.

    `renamed` is the template's table, `own` tells the paths that belong to the user, `replaced` those that another
    answer replaces, and `work` is a scratch folder.

    Raises:
        FastprojError: git failed.
    """
    head, scratch = repository.head(), work / "index"
    base, theirs, ours = (trees.files(repository, tree) for tree in (old, new, head.tree))
    nested = {it: entry for it, entry in trees.nested_projects(ours, answers_path).items() if it not in base}
    ours = {path: entry for path, entry in ours.items() if path not in nested}
    listed = listed_renames(renamed, base, theirs)
    renames = trees.renames(repository, old, new) | listed
    lf = as_lf(repository, base, ours)
    # Nobody edits the answers file. On all sides, the files of a nested project are no renamed ones of this project.
    base_edits: dict[str, Entry | None] = {**nested, answers_path: lf.get(answers_path, ours[answers_path])}
    our_edits: dict[str, Entry | None] = {**lf}
    new_edits: dict[str, Entry | None] = {**nested}

    deleted, of_user = base.keys() - ours.keys(), dict[str, str]()
    if deleted:
        edits = lf | dict.fromkeys(nested)
        of_user = trees.renames(repository, old, trees.tree_with(repository, head.tree, edits, scratch))
        of_user = {was: now for was, now in of_user.items() if was in deleted}
        deleted -= of_user.keys()
    folders = {str(folder) for path in theirs for folder in PurePath(path).parents}
    for path in deleted:
        if path in folders:
            base_edits[path] = None
        else:
            new_edits[path] = base[path]
        if path in renames:
            new_edits[renames[path]] = None
    new_edits[answers_path] = _answers(repository, *(it[answers_path] for it in (theirs, ours, base)))
    kept_own = [
        path
        for path in theirs.keys() - deleted - {answers_path}
        if own(path) and ours.get(path) != base.get(path) and not replaced(path)
    ]
    new_edits |= {path: base.get(path) for path in kept_own}
    gone = _gone(base, theirs, renames)
    renamed_by_user = {path for path in gone if path in of_user}
    gone &= ours.keys()
    edited = {path for path in gone if lf.get(path, ours[path]).oid != base[path].oid}
    of_users = {path: ours[path] for path in gone | {*kept_own} if path in ours}
    needed = imported(repository, of_users, kept_own) - edited
    new_edits |= {path: base[path] for path in edited | needed | renamed_by_user}
    # A file whose mode or line endings alone are the user's leaves without a conflict.
    base_edits |= {path: lf.get(path, ours[path]) for path in gone - edited - needed}
    moved = {was: now for was, now in listed.items() if was not in deleted and not (was in ours and now in ours)}
    for was, now in moved.items():
        base_edits |= {was: None, now: base[was]}
        our_edits |= {was: None, now: lf.get(was, ours[was])} if was in ours else {}

    label = f"template-{version}"
    sides = {"base": (old, base_edits), "yours": (head.tree, our_edits), label: (new, new_edits)}
    tree, stages, conflicts = _merge_tree(_with_commits(repository, sides, work / "merge"), "yours", label)
    tree = trees.tree_with(repository, tree, as_crlf(repository, tree, lf, ours, moved, renames), scratch)
    changes = trees.changes(repository, head.tree, tree)
    removed = {change.path for change in changes if change.after is None}
    return Merged(
        head,
        tree,
        changes,
        stages,
        conflicts,
        {was: now for was, now in renames.items() if was in removed},
        sorted(path for path in deleted if theirs.get(path) != base[path]),
        sorted(path for path in kept_own if theirs[path] != base.get(path)),
        sorted(edited | {of_user[path] for path in renamed_by_user}),
        sorted(needed),
    )


def _gone(base: Tree, theirs: Tree, renames: Mapping[str, str]) -> set[str]:
    """Return the files that the template no longer has, neither under another name nor as a folder."""
    folders = {str(folder) for path in theirs for folder in PurePath(path).parents}
    gone = base.keys() - theirs.keys() - renames.keys() - folders
    return {path for path in gone if not {str(folder) for folder in PurePath(path).parents} & theirs.keys()}


def _answers(repository: Repository, theirs: Entry, ours: Entry, base: Entry) -> Entry:
    """Return the new answers file, with the user's comments."""
    rendered, own, old = (trees.blob(repository, it.oid).decode() for it in (theirs, ours, base))
    return Entry(theirs.mode, trees.store(repository, with_comments(rendered, own, old).encode()))


def _with_commits(repository: Repository, sides: Mapping[str, tuple[str, Edits]], folder: Path) -> Repository:
    """Return the repository with a branch for each side, as git labels conflicts with their names.

    The first side is the parent of the others. The branches are not in the user's repository.
    """
    lines: list[str] = []
    for number, (name, (tree, edits)) in enumerate(sides.items()):
        lines += [f"commit refs/heads/{name}", f"mark :{number + 1}", "committer fastproj <> 0 +0000", "data 0"]
        lines += ["from :1"] if number else []
        lines += [f'M 040000 {tree} ""', *(f"D {_quoted(path)}" for path in edits)]
        lines += [f"M {entry.mode} {entry.oid} {_quoted(path)}" for path, entry in edits.items() if entry is not None]
    named = repository.with_refs_in(folder)
    named.git("fast-import", "--quiet", data=os.fsencode("\n".join([*lines, ""])), work_tree=named.top)
    return named


def _quoted(path: str) -> str:
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _merge_tree(repository: Repository, ours: str, theirs: str) -> tuple[str, Stages, list[Conflict]]:
    """Let git merge, and parse its output."""
    options = ["--write-tree", "-z", "--messages"]
    done = repository.run("merge-tree", *options, ours, theirs, work_tree=repository.top)
    parts = iter(os.fsdecode(done.stdout).split("\0")[:-1])
    tree, stages = next(parts, ""), Stages()
    if done.ok:
        return tree, {}, []
    if done.returncode != 1 or not tree:
        raise FastprojError(f"git could not merge ({done.reason}): fix that, then try again")
    for line in iter(lambda: next(parts, ""), ""):
        about, _, path = line.partition("\t")
        mode, oid, stage = about.split(" ")
        stages.setdefault(path, []).append((mode, oid, int(stage)))
    conflicts = []
    for number in parts:
        paths = tuple(next(parts) for _ in range(int(number)))
        kind, reason = next(parts), next(parts).strip()
        if found := re.match(r"CONFLICT \((.*)\)", kind):
            conflicts.append(Conflict(paths, found[1], reason))
    return tree, stages, conflicts
