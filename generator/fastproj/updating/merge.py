"""Merge a newer rendering into the user's commit: git's three-way merge, with the old rendering as its base.

An edit of the user is never lost. In addition to what git does:
- a file that the template renamed, and lists as `renamed` in its copier.yml, is merged under its new name, however
  much of it was rewritten;
- a file that the user deleted stays deleted, even if the template changed or renamed it;
- a file that the user edited and the template no longer has stays, and is the user's now;
- a file that belongs to the user (`_skip_if_exists`) and was changed is left alone, unless an answer replaces it;
- a module that such a file imports stays if the template no longer has it.
"""

import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from ..shared.errors import FastprojError
from .line_ends import with_users_line_ends
from .own_imports import imported
from .renaming import folders_of, free_renames, listed_renames
from .repository import Repository, Tree

# Whatever the user prefers, renamed files are followed, and the user's files stay in their folders.
_SETTINGS = {"merge.renames": "true", "merge.directoryRenames": "false", "merge.renameLimit": "32767"}


@dataclass(frozen=True)
class Difference:
    """What the template changed: the trees of two renderings, and what it says about their files."""

    old: str
    new: str
    renamed: dict[str, str]
    own: set[str]
    """Files that belong to the user, except for those that another answer replaces."""


@dataclass
class Merged:
    """The result of a merge."""

    head: str
    """The user's commit."""
    tree: str = ""
    changes: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)
    """The entries of each path that differs: of the user's commit, and of the merge."""
    stages: list[str] = field(default_factory=list)
    """The unmerged entries, as `git update-index --index-info` reads them."""
    conflicts: list[str] = field(default_factory=list)
    """What git could not merge, in words."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Files that the template renamed."""
    notes: list[str] = field(default_factory=list)
    """Files that stay as the user has them, in words."""
    template: str = ""
    """The commit of the template's changes."""

    @property
    def unmerged(self) -> set[str]:
        """The paths in conflict."""
        return {line.partition("\t")[2] for line in self.stages}


def merge(
    repository: Repository, head: str, difference: Difference, answers_path: str, message: str, work: Path
) -> Merged:
    """Merge the template's changes into a commit; `work` is a scratch folder.

    Raises:
        FastprojError: git failed.
    """
    merged = Merged(head)
    ours = repository.files(head)
    listed = listed_renames(difference.renamed, *(repository.files(it) for it in (difference.old, difference.new)))
    renames = repository.renames(difference.old, difference.new) | listed
    old, new = with_users_line_ends(repository, difference.old, difference.new, ours, renames, work / "index")
    base, theirs = repository.files(old), repository.files(new)
    by_user = {was: now for was, now in repository.renames(old, head).items() if was in base and was not in ours}
    listed = free_renames(listed, ours, by_user)
    renames = repository.renames(old, new) | listed
    sides = [(old, dict(base)), (head, dict(ours)), (new, dict(theirs))]
    _keep_users_files(repository, difference, sides, renames, by_user, answers_path, merged)
    _move(sides, listed, base.keys() - ours.keys() - by_user.keys())
    _commit(repository, sides, message, work / "merge")
    _merge_tree(repository, work / "merge", merged)
    merged.template = repository.git("rev-parse", "TEMPLATE", git_dir=work / "merge").decode().strip()
    result = repository.files(merged.tree)
    entries = {path: (ours.get(path), result.get(path)) for path in sorted(ours.keys() | result.keys())}
    merged.changes = {path: pair for path, pair in entries.items() if pair[0] != pair[1]}
    removed = {path for path, (_, after) in merged.changes.items() if after is None}
    merged.renamed = {was: now for was, now in renames.items() if was in removed}
    return merged


def _keep_users_files(
    repository: Repository,
    difference: Difference,
    sides: list[tuple[str, Tree]],
    renames: dict[str, str],
    by_user: dict[str, str],
    answers_path: str,
    merged: Merged,
) -> None:
    """Change the sides of the merge such that it leaves alone what is the user's now."""
    base, ours, theirs = (files for _, files in sides)
    old, new = dict(base), dict(theirs)
    base[answers_path] = ours[answers_path]  # nobody edits the answers file
    folders = folders_of(new)

    deleted = old.keys() - ours.keys() - by_user.keys()
    for path in sorted(deleted):
        if path in folders:
            del base[path]
        else:
            theirs[path] = old[path]
        theirs.pop(renames.get(path, ""), None)
        if new.get(path) != old[path]:
            merged.notes.append(f"deleted   {path}: stays deleted, although the template changed it")

    kept = {path for path in (difference.own & new.keys()) - deleted if ours.get(path) != old.get(path)}
    for path in sorted(kept):
        _set(theirs, path, old.get(path))
        if new[path] != old.get(path):
            merged.notes.append(f"yours     {path}: kept with your changes; the template has a newer version")

    gone = {path for path in old.keys() - new.keys() - renames.keys() - folders if not _parents(path) & new.keys()}
    edited = {path for path in gone & ours.keys() if ours[path].split()[1] != old[path].split()[1]}
    edited |= gone & by_user.keys()
    files = {path: ours[path] for path in gone | kept if path in ours}
    needed = imported(repository, files, kept) - edited
    for path in sorted(gone & (ours.keys() | by_user.keys())):
        if path in edited:
            merged.notes.append(
                f"yours     {by_user.get(path, path)}: kept with your changes; it is no longer rendered"
            )
        elif path in needed:
            merged.notes.append(f"yours     {path}: kept, as a file that you edited imports it")
        if path in edited | needed:
            theirs[path] = old[path]
        else:  # a file whose mode alone is the user's leaves without a conflict
            base[path] = ours[path]


def _set(files: Tree, path: str, entry: str | None) -> None:
    files.pop(path, None)
    files.update({path: entry} if entry else {})


def _parents(path: str) -> set[str]:
    return {str(folder) for folder in PurePath(path).parents}


def _move(sides: list[tuple[str, Tree]], listed: dict[str, str], deleted: set[str]) -> None:
    """Move listed files on the sides of the base and the user, so that git merges them under their new names."""
    base, ours, _ = (files for _, files in sides)
    for was, now in listed.items():
        if was in deleted or now in base:
            continue
        base[now] = base.pop(was)
        if was in ours:
            ours[now] = ours.pop(was)


def _commit(repository: Repository, sides: list[tuple[str, Tree]], message: str, folder: Path) -> None:
    """Commit each side in a scratch folder that is to git another work tree of the repository, with refs of its own.

    The first side is the parent of the others. HEAD and TEMPLATE are the names that git writes into conflicts.
    """
    (folder / "refs").mkdir(parents=True)
    (folder / "commondir").write_bytes(os.fsencode(repository.common_dir) + b"\n")
    (folder / "HEAD").write_text("ref: refs/worktree/ours\n")
    identity = repository.run("var", "GIT_COMMITTER_IDENT")
    who = os.fsdecode(identity.stdout).strip() if identity.ok else f"fastproj <> {time.time():.0f} +0000"
    lines = []
    for number, (ref, (tree, files)) in enumerate(zip(("refs/worktree/base", "HEAD", "TEMPLATE"), sides, strict=True)):
        ref = "refs/worktree/ours" if ref == "HEAD" else ref
        lines += [f"commit {ref}", f"mark :{number + 1}", f"committer {who}", f"data {len(message)}", message]
        lines += ["from :1"] if number else []
        before = repository.files(tree)
        differing = [path for path in before.keys() | files.keys() if before.get(path) != files.get(path)]
        lines += [f'M 040000 {_tree_of(repository, tree)} ""', *(f"D {_quoted(path)}" for path in differing)]
        lines += [f"M {files[path]} {_quoted(path)}" for path in differing if path in files]
    repository.git("fast-import", "--quiet", git_dir=folder, data=os.fsencode("\n".join([*lines, ""])))


def _tree_of(repository: Repository, name: str) -> str:
    return repository.git("rev-parse", f"{name}^{{tree}}").decode().strip()


def _quoted(path: str) -> str:
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _merge_tree(repository: Repository, folder: Path, merged: Merged) -> None:
    """Let git merge, and parse its output."""
    options = ["--write-tree", "-z", "--messages", "HEAD", "TEMPLATE"]
    done = repository.run("merge-tree", *options, git_dir=folder, settings=_SETTINGS)
    parts = iter(os.fsdecode(done.stdout).split("\0")[:-1])
    merged.tree = next(parts, "").rpartition("\n")[2]  # a merge driver may have printed something before
    if done.returncode not in (0, 1) or not merged.tree:
        raise FastprojError(f"git could not merge ({done.reason}): fix that, then try again")
    if done.ok:
        return
    merged.stages = list(iter(lambda: next(parts, ""), ""))
    for number in parts:
        path, *_ = [next(parts) for _ in range(int(number))]
        kind, reason = next(parts), next(parts).strip()
        if kind == "CONFLICT (contents)":
            merged.conflicts.append(f"{path}: you and the template changed the same lines")
        elif found := re.fullmatch(r"CONFLICT \((.*)\)", kind):
            merged.conflicts.append(f"{path} ({found[1]}): {reason.removeprefix(f'{kind}: ')}")
