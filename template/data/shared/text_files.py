"""Files of text for data.py: the built-in ones, those of a folder, and their splits."""

import os
import re
import sysconfig
from pathlib import Path

from .errors import UserError

VALIDATION = """__future__ __hello__ __phello__ _markupbase _py_warnings antigravity cgitb cmd
contextvars dis ensurepip json modulefinder operator secrets shlex sqlite3 struct this token tty
warnings"""
"""Modules of the standard library for validation, 2% of its bytes.

They share no code with others; if files were chosen at random, a fifth of their text would also be
in the training text."""
EXCLUDED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}
SYSTEM = {
    "__macosx",
    "thumbs.db",
    "desktop.ini",
    "@eadir",
    "#recycle",
    "$recycle.bin",
    "lost+found",
    "system volume information",
}
"""Names in lower case of files and folders that an operating system or a NAS makes."""
SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "eval": "val",
    "test": "test",
    "testing": "test",
}
"""Words in names of files and folders, in any case, and the split that their text is in."""

Files = dict[str, list[Path]]
"""The files for `train`, `val` and `test`."""


def library() -> Files:
    """Return the modules of the standard library; none are for the test."""
    splits: Files = {"train": [], "val": [], "test": []}
    root = Path(sysconfig.get_paths()["stdlib"])
    for file in sorted(root.rglob("*.py")):
        names = file.relative_to(root).parts
        if EXCLUDED.intersection(names):
            continue
        module = names[0].removesuffix(".py")
        split = "val" if module in VALIDATION.split() else "train"
        splits[split].append(file)
    return splits


def own_files(path: Path, pattern: str = "*") -> Files:
    """Return a file, or the files of a folder that match the pattern, at any depth.

    Names such as wiki.train.txt or val/a.txt are splits, if there are some for `train` and for
    another split, and no other files. Otherwise all files are for training; but other files beside
    `train` and `val`, or beside a folder that has only these, are an error. Linked folders are left
    out.
    """
    if path == Path():  # also that of an empty string, as of a variable that is not set
        raise UserError("data.path is empty, or the current folder: give the folder's name")
    if not path.exists():
        raise UserError(f"data.path={path} does not exist: give a text file, or a folder of them")
    if path.is_file():
        return {"train": [path], "val": [], "test": []}
    files = [file for file in sorted(path.rglob(pattern)) if _has_text(file, path)]
    if not files:
        raise UserError(f"data.path={path} has no files that match {pattern}: give text files")
    return _named_splits(files, path)


def _has_text(file: Path, folder: Path) -> bool:
    """Whether it is a file, and neither empty nor hidden nor of the system."""
    if not file.is_file():
        return False
    names = file.relative_to(folder).parts
    is_hidden = any(name.startswith(".") or name.lower() in SYSTEM for name in names)
    return file.stat().st_size > 0 and not is_hidden


def _named_splits(files: list[Path], path: Path) -> Files:
    # a folder may have only one, with the splits
    folder = Path(os.path.commonpath([file.parent for file in files]))
    splits: Files = {"train": [], "val": [], "test": []}
    others: list[Path] = []
    for file in files:
        found = filter(None, map(_split_of, file.relative_to(folder).parts))
        split = next(found, "")
        group = splits[split] if split else others
        group.append(file)
    if splits["train"] and (splits["val"] or splits["test"]) and not others:
        return splits
    for parent, names in _splits_of_folders(files, folder).items():
        is_whole = parent == folder or "" not in names
        if is_whole and {"train", "val"} <= names:
            give = f"give data.path={parent}, " if parent != folder else ""
            raise UserError(
                f"data.path={path} has text for train and val, and other files, such as "
                f"{others[0].relative_to(folder)}: {give}move these out, or rename those of the "
                "splits"
            )
    return {"train": files, "val": [], "test": []}


def _splits_of_folders(files: list[Path], folder: Path) -> dict[Path, set[str]]:
    """Return the splits for which the files and folders in each folder are named."""
    names: dict[Path, set[str]] = {}
    for file in files:
        places = [file, *file.parents]
        for place in places[: places.index(folder)]:
            names.setdefault(place.parent, set()).add(_split_of(place.name))
    return names


def _split_of(name: str) -> str:
    """Return the split for which a file or folder is named, "" for none, as for code."""
    name = name.lower()
    if name.endswith(".py"):
        return ""
    words = re.split(r"[^a-z]+", name)
    return next((SPLITS[word] for word in words if word in SPLITS), "")
