"""Helpers for tests of the program's local copy of the template."""

import os
import shutil
import subprocess
from pathlib import Path

from fastproj.template.embedded import entries


def held_versions(home: Path) -> list[str]:
    assert os.listdir(home) == ["template.bundle"], "nothing else is left there"
    return list(entries(home / "template.bundle"))


def clones(home: Path, folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    command = [
        "git",
        "clone",
        "--quiet",
        str(home / "template.bundle"),
        str(folder),
    ]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
