"""Merge a newer rendering into the user's commit: git's three-way merge, with the old rendering as its base.

An edit of the user is never lost. In addition to what git does:
- a file that the template renamed, and lists as `renamed` in its copier.yml, is merged under its new name, however
  much of it was rewritten;
- a file that the user deleted stays deleted, even if the template changed or renamed it;
- a file that belongs to the user (`_skip_if_exists`) and was changed is left alone, unless an answer replaces it;
- a file that the user converted to CRLF is merged line by line, and keeps its line endings.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

from ..shared.errors import FastprojError
from . import trees
from .linked import with_comments
from .repository import Head, Repository
from .trees import LINK, SUBMODULE, Change, Edits, Entry, Stages, Tree


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
    listed = _listed_renames(renamed, base, theirs)
    renames = trees.renames(repository, old, new) | listed
    lf = _as_lf(repository, base, ours)
    # Nobody edits the answers file. On all sides, the files of a nested project are no renamed ones of this project.
    base_edits: dict[str, Entry | None] = {**nested, answers_path: lf.get(answers_path, ours[answers_path])}
    our_edits: dict[str, Entry | None] = {**lf}
    new_edits: dict[str, Entry | None] = {**nested}

    deleted = base.keys() - ours.keys()
    if deleted:
        edits = lf | dict.fromkeys(nested)
        deleted -= trees.renames(repository, old, trees.tree_with(repository, head.tree, edits, scratch)).keys()
    folders = {str(folder) for path in theirs for folder in PurePath(path).parents}
    for path in deleted:
        if path in folders:
            base_edits[path] = None
        else:
            new_edits[path] = base[path]
        if path in renames:
            new_edits[renames[path]] = None
    new_edits[answers_path] = _answers(repository, *(it[answers_path] for it in (theirs, ours, base)))
    stay_own = []
    for path in theirs.keys() - deleted - {answers_path}:
        if own(path) and ours.get(path) != base.get(path) and not replaced(path):
            new_edits[path] = base.get(path)
            stay_own += [path] if theirs[path] != base.get(path) else []
    moved = {was: now for was, now in listed.items() if was not in deleted and not (was in ours and now in ours)}
    for was, now in moved.items():
        base_edits |= {was: None, now: base[was]}
        our_edits |= {was: None, now: lf.get(was, ours[was])} if was in ours else {}

    label = f"template-{version}"
    sides = {"base": (old, base_edits), "yours": (head.tree, our_edits), label: (new, new_edits)}
    tree, stages, conflicts = _merge_tree(_with_commits(repository, sides, work / "merge"), "yours", label)
    tree = trees.tree_with(repository, tree, _as_crlf(repository, tree, lf, ours, moved, renames), scratch)
    changes = trees.changes(repository, head.tree, tree)
    gone = {change.path for change in changes if change.after is None}
    return Merged(
        head,
        tree,
        changes,
        stages,
        conflicts,
        {was: now for was, now in renames.items() if was in gone},
        sorted(path for path in deleted if theirs.get(path) != base[path]),
        sorted(stay_own),
    )


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


def _listed_renames(renamed: Mapping[str, str], base: Tree, theirs: Tree) -> dict[str, str]:
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


def _as_lf(repository: Repository, base: Tree, ours: Tree) -> dict[str, Entry]:
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


def _as_crlf(
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
