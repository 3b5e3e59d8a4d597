"""The record of an update while its files are moved into place: one commit, which REF names.

Its tree is the merge, its parent HEAD, its message the rest. After a kill, `fastproj update --continue` or `--abort`
ends the update. It is dropped if HEAD, the branch or the project's index entries have changed since.
"""

import dataclasses
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from ..shared.errors import FastprojError
from .repository import Repository, open_at
from .trees import Stages

REF = "refs/worktree/fastproj/update"  # of this work tree alone, unlike most refs


@dataclass(frozen=True)
class Pending:
    """An update that was interrupted while its files were moved into place."""

    version: str
    branch: str
    head: str
    tree: str
    """The merge."""
    prefix: str
    """The project's folder in the repository."""
    stages: Stages
    index: list[str]
    """Digests of the project's index entries before and after the update."""

    def __str__(self) -> str:
        """Describe it, and what to do about it."""
        commands = "finish it with `fastproj update --continue`, or undo it with `fastproj update --abort`"
        return f"the update to {self.version} was interrupted: {commands}"


def pending(where: Path) -> tuple[Repository, Pending] | None:
    """Return the interrupted update in the repository of a folder, without any change; None if there is none.

    Raises:
        FastprojError: another version of fastproj wrote it.
    """
    try:
        repository = open_at(Path(os.path.realpath(where)))
    except FastprojError:
        return None  # whoever reads the project reports it
    journal = repository.run("cat-file", "commit", REF)
    if not journal.ok:
        return None
    header, _, message = journal.text.partition("\n\n")
    try:
        tree, parent = (line.split()[1] for line in header.splitlines()[:2])
        found = Pending(tree=tree, head=parent, **json.loads(message))
    except (ValueError, TypeError, IndexError) as error:
        raise FastprojError(
            f"another version of fastproj began the interrupted update of {repository.top}: use that version, or "
            f"forget the update with git update-ref -d {REF}"
        ) from error
    return dataclasses.replace(repository, prefix=found.prefix), found


def outdated(repository: Repository, update: Pending) -> str:
    """Return why an interrupted update cannot be continued or aborted any more; empty if it can.

    Raises:
        FastprojError: git failed.
    """
    head = repository.head()
    if head.branch != update.branch:
        return "another branch is checked out"
    if head.commit != update.head:
        return "there is another commit"
    return "" if repository.index_digest() in update.index else "files were staged"


def drop_if_outdated(repository: Repository, update: Pending) -> None:
    """Drop an interrupted update that can no longer be continued or aborted.

    Raises:
        FastprojError: it was dropped.
    """
    if reason := outdated(repository, update):
        drop(repository)
        raise FastprojError(
            f"the interrupted update to {update.version} was dropped, as {reason} in {repository.top} now: see git "
            "status for files that it left, then try again"
        )


def record(repository: Repository, update: Pending) -> None:
    """Write the journal: the point of no return."""
    details = asdict(update)
    tree, head = details.pop("tree"), details.pop("head")
    who = "fastproj <fastproj@localhost> 946684800 +0000"
    text = f"tree {tree}\nparent {head}\nauthor {who}\ncommitter {who}\n\n{json.dumps(details)}\n".encode()
    commit = repository.git("hash-object", "-t", "commit", "-w", "--stdin", data=text)
    repository.git("update-ref", REF, commit.decode().strip(), repository.no_object)


def drop(repository: Repository) -> None:
    """Remove what an interrupted update left in git's folder.

    Raises:
        FastprojError: git failed.
    """
    repository.git("update-ref", "-d", REF)
    clean_up(repository)


def clean_up(repository: Repository) -> None:
    """Remove the scratch folders."""
    for folder in (work_folder(repository), repository.git_dir / "fastproj"):
        shutil.rmtree(folder, ignore_errors=True)


def work_folder(repository: Repository) -> Path:
    """Return the scratch folder; it is on the file system of the work tree, as files are moved from it."""
    same = repository.git_dir.stat().st_dev == repository.top.stat().st_dev
    return repository.git_dir / "fastproj" if same else repository.top / ".fastproj-update.tmp"
