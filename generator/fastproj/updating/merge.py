"""Merge two renderings into the user's commit: git's own three-way merge, with the old rendering as its base.

What the user did to a file always stands. Beyond what git does by itself:
- a file that the user deleted stays deleted, also where the template changed or renamed it;
- a file that is the user's own (`_skip_if_exists`) and was changed is left alone, unless an answer exchanged it;
- a file whose line ends the user turned to CRLF is merged line by line, and keeps its line ends.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .repository import LINK, SUBMODULE, Entry, Repository, Tree

LARGEST_TEXT = 4_000_000


@dataclass(frozen=True)
class Change:
    """What an update does to one path."""

    path: str
    before: Entry | None
    after: Entry | None


@dataclass(frozen=True)
class Conflict:
    """Paths that git could not merge by itself, and its reason."""

    paths: tuple[str, ...]
    kind: str
    reason: str


@dataclass(frozen=True)
class Merged:
    """What a merge came to."""

    head: str
    """The tree of the commit that was merged into."""
    tree: str
    changes: list[Change]
    stages: dict[str, list[tuple[str, str, int]]]
    """For each path in conflict: mode, name of the content and stage, as git's index has them."""
    conflicts: list[Conflict]
    renamed: dict[str, str]
    """What the template renamed."""
    stay_deleted: list[str]
    stay_own: list[str]


def merge(
    repository: Repository,
    old: str,
    new: str,
    label: str,
    answers_file: str,
    own: Callable[[str], bool],
    exchanged: Callable[[str], bool],
    scratch: Path,
) -> Merged:
    """Merge the changes between two trees with renderings into the last commit.

    `own` says which paths are the user's own, `exchanged` which of them another answer replaces.

    Raises:
        FastprojError: git failed.
    """
    head = repository.tree_of_head()
    base, theirs, ours = (repository.files_of_project(tree) for tree in (old, new, head))
    base_edits: dict[str, Entry | None] = {answers_file: ours[answers_file]}
    new_edits: dict[str, Entry | None] = {}

    template_renames = repository.renames(old, new)
    deleted = base.keys() - ours.keys()
    deleted -= repository.renames(old, head).keys() if deleted else set()
    for path in deleted:
        new_edits[path] = base[path]
        if path in template_renames:
            new_edits[template_renames[path]] = None
    stay_deleted = sorted(path for path in deleted if theirs.get(path) != base[path])

    stay_own = []
    for path in theirs.keys() - deleted - {answers_file}:
        if own(path) and ours.get(path) != base.get(path) and not exchanged(path):
            new_edits[path] = base.get(path)
            stay_own += [path] if theirs[path] != base.get(path) else []

    with_crlf = _line_ends(repository, old, head, base, ours, scratch)
    for path in with_crlf:
        if path != answers_file:  # of which the template's always counts
            base_edits[path] = _to_crlf(repository, base[path])
        target = path if path in theirs else template_renames.get(path)
        if target in theirs and target not in new_edits:
            new_edits[target] = _to_crlf(repository, theirs[target])

    base_tree = repository.tree_with(old, base_edits, scratch)
    base_commit = repository.commit(base_tree)
    our_commit = repository.commit(head, base_commit)
    their_commit = repository.commit(repository.tree_with(new, new_edits, scratch), base_commit)
    tree, stages, conflicts = _merge_tree(repository, our_commit, their_commit)
    if stages:
        tree, stages, conflicts = _with_labels(
            repository, tree, stages, conflicts, {our_commit: "yours", their_commit: label}, scratch
        )
    changes = [Change(path, *both) for path, both in sorted(repository.differences(head, tree).items())]
    changed = {change.path for change in changes if change.after is None}
    renamed = {was: now for was, now in template_renames.items() if was in changed}
    return Merged(head, tree, changes, stages, conflicts, renamed, stay_deleted, sorted(stay_own))


def _merge_tree(
    repository: Repository, ours: str, theirs: str
) -> tuple[str, dict[str, list[tuple[str, str, int]]], list[Conflict]]:
    """Let git merge, and read what it says."""
    said = repository.git("merge-tree", "--write-tree", "-z", "--messages", ours, theirs, allowed=(0, 1))
    tree, *rest = said.split(b"\0")
    stages: dict[str, list[tuple[str, str, int]]] = {}
    parts = iter(rest)
    for line in parts:
        if not line:
            break
        about, _, path = line.partition(b"\t")
        mode, oid, stage = about.decode().split(" ")
        stages.setdefault(os.fsdecode(path), []).append((mode, oid, int(stage)))
    conflicts = []
    for number in parts:
        if not number:
            break
        paths = tuple(os.fsdecode(next(parts)) for _ in range(int(number)))
        kind, reason = next(parts).decode(errors="replace"), next(parts).decode(errors="replace").strip()
        found = re.match(r"CONFLICT \((.*)\)", kind)
        if found:
            conflicts.append(Conflict(paths, found[1], reason))
    return tree.decode(), stages, conflicts


def _with_labels(
    repository: Repository,
    tree: str,
    stages: dict[str, list[tuple[str, str, int]]],
    conflicts: list[Conflict],
    labels: dict[str, str],
    scratch: Path,
) -> tuple[str, dict[str, list[tuple[str, str, int]]], list[Conflict]]:
    """Say whose a side of a conflict is, where git could only give the names of commits."""
    present = repository.tree(tree)
    edits: dict[str, Entry | None] = {}
    places = {}
    for path, entry in present.items():
        commit = next((commit for commit in labels if f"~{commit}" in path), None)
        if commit is None and path not in stages:
            continue
        if commit is not None:  # moved aside, as the path is a file on one side and a folder on the other
            plain = path.replace(commit, labels[commit].replace(" ", "-"))
            if plain not in present:
                edits[path], places[path] = None, plain
        if entry.mode in (LINK, SUBMODULE):
            edits[places.get(path, path)] = entry
            continue
        content = repository.blob(entry.oid)
        for name, label in labels.items():
            marker = rb"(?m)^([<>]{7,} )" + name.encode()
            content = re.sub(marker, lambda found, label=label: found[1] + label.encode(), content)  # type: ignore[misc]
        edits[places.get(path, path)] = Entry(entry.mode, repository.store(content))
    stages = {places.get(path, path): found for path, found in stages.items()}

    def plainly(text: str) -> str:
        for name, label in labels.items():
            text = text.replace(f"~{name}", f"~{label.replace(' ', '-')}").replace(name, label)
        return text

    conflicts = [
        Conflict(tuple(places.get(path, path) for path in it.paths), it.kind, plainly(it.reason)) for it in conflicts
    ]
    return repository.tree_with(tree, edits, scratch), stages, conflicts


def _line_ends(repository: Repository, old: str, head: str, base: Tree, ours: Tree, scratch: Path) -> list[str]:
    """Return the rendered files, by the paths they were rendered to, that the user turned to CRLF as a whole."""
    edited = [path for path in sorted(repository.with_crlf() & ours.keys()) if base.get(path) != ours[path]]
    plain: dict[str, Entry | None] = {}
    for path in edited:
        size = int(repository.git("cat-file", "-s", ours[path].oid))
        content = repository.blob(ours[path].oid) if size < LARGEST_TEXT else b""
        if _only_crlf(content):
            plain[path] = Entry(ours[path].mode, repository.store(content.replace(b"\r\n", b"\n")))
    if not plain:
        return []
    renames = repository.renames(old, repository.tree_with(head, plain, scratch))
    pairs = {path: path for path in plain if path in base} | {was: now for was, now in renames.items() if now in plain}
    return [path for path in pairs if path in base and b"\r\n" not in repository.blob(base[path].oid)]


def _only_crlf(content: bytes) -> bool:
    return b"\0" not in content and 0 < content.count(b"\n") == content.count(b"\r\n")


def _to_crlf(repository: Repository, entry: Entry) -> Entry:
    content = repository.blob(entry.oid)
    if entry.mode in (LINK, SUBMODULE) or b"\r\n" in content or b"\0" in content:
        return entry
    return Entry(entry.mode, repository.store(content.replace(b"\n", b"\r\n")))
