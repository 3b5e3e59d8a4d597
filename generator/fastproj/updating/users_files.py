"""What in a project is the user's: names of files, and line endings."""

from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath

from .repository import Repository, Tree


def paths_in(folder: Path) -> set[str]:
    """Return the paths of the files in a folder."""
    return {str(it.relative_to(folder)) for it in folder.rglob("*") if it.is_symlink() or it.is_file()}


def folders_of(paths: Iterable[str]) -> set[str]:
    """Return all folders around these paths."""
    return {str(folder) for path in paths for folder in PurePath(path).parents}


def listed_renames(table: Mapping[str, str], old: set[str], new: set[str]) -> dict[str, str]:
    """Return the files that the template renamed between two renderings, as its table `renamed` lists them."""
    found = {}
    for was in old:
        now = was
        for _ in table:  # a file may have been renamed several times; an entry that ends in `/` renames a folder
            folders = (it for it in table if it.endswith("/") and now.startswith(it))
            entry = now if now in table else next(folders, None)
            if entry is None or (now in new and now != was):
                break
            now = table[entry] + now.removeprefix(entry)
        if now in new - old:
            found[was] = now
    return found


def free_renames(listed: Mapping[str, str], ours: Tree, by_user: Mapping[str, str]) -> dict[str, str]:
    """Return the renames whose new path is free in the user's files, or is where the user moved the same file."""
    taken = ours.keys() | folders_of(ours)
    free = {was: now for was, now in listed.items() if now not in taken and not folders_of([now]) & ours.keys()}
    return free | {was: now for was, now in listed.items() if by_user.get(was) == now}


def convert_line_ends(repository: Repository, old: Path, new: Path, listed: Mapping[str, str], ours: Tree) -> None:
    """Give CRLF line endings to rendered files that the user converted, so that git can merge them line by line."""
    lines = repository.lines("ls-files", "--cached", "--eol", "-z", "--", repository.where)
    crlf, rendered = {line.partition("\t")[2] for line in lines if line.startswith("i/crlf ")}, paths_in(old)
    renamed = rendered - ours.keys() if crlf - rendered else set()  # possibly by the user
    for path in (crlf & rendered) | renamed:
        for file in (old / path, new / listed.get(path, path)):
            content = file.read_bytes() if file.is_file() and not file.is_symlink() else b"\0"
            if b"\0" not in content and b"\r\n" not in content:
                file.write_bytes(content.replace(b"\n", b"\r\n"))
