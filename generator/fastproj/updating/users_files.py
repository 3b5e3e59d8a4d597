"""What in a project is the user's: names of files, and line endings."""

from collections.abc import Iterable
from pathlib import Path, PurePath

from .repository import Repository, Tree


def paths_in(folder: Path) -> set[str]:
    """Return the paths of the files in a folder."""
    return {str(it.relative_to(folder)) for it in folder.rglob("*") if it.is_symlink() or it.is_file()}


def folders_of(paths: Iterable[str]) -> set[str]:
    """Return all folders around these paths."""
    return {str(folder) for path in paths for folder in PurePath(path).parents}


def convert_line_ends(repository: Repository, old: Path, new: Path, ours: Tree) -> None:
    """Give CRLF line endings to rendered files that the user converted, so that git can merge them line by line."""
    lines = repository.lines("ls-files", "--cached", "--eol", "-z", "--", repository.where)
    crlf, rendered = {line.partition("\t")[2] for line in lines if line.startswith("i/crlf ")}, paths_in(old)
    renamed = rendered - ours.keys() if crlf - rendered else set()  # possibly by the user
    for path in (crlf & rendered) | renamed:
        for file in (old / path, new / path):
            content = file.read_bytes() if file.is_file() and not file.is_symlink() else b"\0"
            if b"\0" not in content and b"\r\n" not in content:
                file.write_bytes(content.replace(b"\n", b"\r\n"))
