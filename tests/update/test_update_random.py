"""Random edits of the user and of the template: nothing is lost, all is named and undone."""

import shutil
from pathlib import Path

import pytest
import random_updates
from matrix import EVERY
from program import Fastproj
from updating import commit


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, fastproj: Fastproj) -> Path:
    """A template and its project."""
    folder = tmp_path_factory.mktemp("first")
    (folder / "template").mkdir()
    random_updates.write_template(folder / "template")
    fastproj("new", "proj", "--yes", "--template", "template", cwd=folder)
    return folder


@pytest.mark.parametrize("seed", range(300 if EVERY else 4))
def test_random_update_loses_nothing(
    seed: int, first: Path, fastproj: Fastproj, tmp_path: Path
) -> None:
    folder = tmp_path / "attempt"
    shutil.copytree(first, folder, symlinks=True)
    answers = folder / "proj/.copier-answers.yml"
    answers.write_text(answers.read_text().replace(f"{first}", f"{folder}"))
    commit(folder / "proj")
    problems = random_updates.attempt(seed, folder / "template", folder / "proj", fastproj)
    assert not problems, "\n".join(problems)
