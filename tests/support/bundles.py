"""Repositories and bundles that tests of the bundle share."""

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

from fastproj.template.embedded import entries
from history import Repository
from template_bundle import build


def contents(archive: bytes) -> dict[str, tuple[int, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        found = {}
        for entry in files:
            content = files.extractfile(entry)
            if content:
                found[entry.name] = (entry.mode, content.read())
        return found


def archived(
    folder: Path,
    commit: str,
    *paths: str,
) -> dict[str, tuple[int, bytes]]:
    return contents(
        subprocess.run(
            ["git", "archive", commit, *paths], cwd=folder, capture_output=True, check=True
        ).stdout
    )


def clone(origin: Repository, folder: Path, *options: str) -> Repository:
    origin.git(
        "clone",
        "--quiet",
        *options,
        str(origin.folder),
        str(folder),
    )
    return Repository(folder, date="2027-07-07T07:07:07+0700")


def built(root: Path, folder: Path) -> dict[str, str]:
    build(root, folder / "template.bundle")
    return entries(folder / "template.bundle")


def _bare(folder: Path) -> Path:
    shutil.rmtree(folder / "bare.git", ignore_errors=True)
    command = [
        "git",
        "clone",
        "--quiet",
        "--bare",
        str(folder / "template.bundle"),
        str(folder / "bare.git"),
    ]
    subprocess.run(command, check=True)
    return folder / "bare.git"
