"""The patches of examples/ fit the projects that are rendered; `make examples` replays them whole."""

import subprocess
import tomllib
from pathlib import Path

import pytest
from matrix import ROOT
from program import Fastproj

EXAMPLES = sorted(file.parent for file in ROOT.glob("examples/*/example.toml"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_patch_applies(example: Path, fastproj: Fastproj, tmp_path: Path) -> None:
    answers = tomllib.loads((example / "example.toml").read_text())["answers"]
    assert fastproj("new", "proj", *answers, "--no-git", "--yes", cwd=tmp_path).returncode == 0
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path / "proj", check=True)
    check = ["git", "apply", "--check", str(example / "change.patch")]
    done = subprocess.run(check, cwd=tmp_path / "proj", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
