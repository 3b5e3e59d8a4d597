"""The modules of Python's standard library, a text that is on every machine, split by families that share code."""

import hashlib
import sysconfig
from pathlib import Path

FAMILIES = (
    "abc collections collections_abc functools py_abc typing weakref weakrefset",
    "aifc chunk imghdr sndhdr sunau wave",
    "asynchat asyncio asyncore concurrent multiprocessing queue smtpd socket socketserver subprocess threading",
    "bz2 compression gzip lzma tarfile zipfile",
    "cgi email http urllib wsgiref",
    "cProfile profile pstats",
    "datetime pydatetime strptime",
    "decimal pydecimal",
    "distutils osx_support shutil site sysconfig",
    "ftplib imaplib nntplib poplib smtplib telnetlib",
    "genericpath ntpath nturl2path os posixpath",
    "inspect pydoc xml xmlrpc",
    "io pyio",
    "re sre_compile sre_constants sre_parse",
)
"""Top-level modules of the standard library that share code or docstrings; any other is a family of its own."""


def library_files() -> tuple[Path, list[Path]]:
    """The folder of the standard library, and its modules without their tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    excluded = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}
    return root, sorted(file for file in root.rglob("*.py") if not excluded.intersection(file.relative_to(root).parts))


def library_validation(root: Path, files: list[Path], val_fraction: float) -> set[Path]:
    """The files of the standard library for validation: whole families, in the order of a hash of their names.

    Split by file, a fifth of the validation text would also be in the training text: the modules of `encodings`, for
    example, are nearly copies. A family larger than a quarter of the split is for training, so that it is varied.
    """
    first = {name: names.split()[0] for names in FAMILIES for name in names.split()}
    families: dict[str, list[Path]] = {}
    for file in files:
        name = file.relative_to(root).parts[0].removesuffix(".py").lstrip("_")
        families.setdefault(first.get(name, name), []).append(file)
    sizes = {family: sum(file.stat().st_size for file in members) for family, members in families.items()}
    left = val_fraction * sum(sizes.values())
    largest, chosen = left / 4, set[Path]()
    for family in sorted(families, key=name_digest):
        if sizes[family] <= min(left, largest):
            left -= sizes[family]
            chosen.update(families[family])
    return chosen


def name_digest(name: str) -> bytes:
    """A hash of a name, the same on every machine."""
    return hashlib.sha256(name.encode(errors="surrogateescape")).digest()
