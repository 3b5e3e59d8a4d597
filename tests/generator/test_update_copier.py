"""Plain `copier update`, without fastproj, in the states where it is safe."""

import shutil
import subprocess
import sys
from pathlib import Path

import copier
import pytest
from bundles import built
from edits import (
    State,
    added_file_of_the_same_name,
    crlf,
    deleted,
    edited_adjacent_line,
    edited_another_function,
    edited_same_line,
    own_model,
    renamed,
)
from history import Repository
from matrix import EVERY
from program import Fastproj
from updating import MakeProject, commit, edit, git, lost_edits, read_answers, read_files

# Where plain `copier update` is safe. It loses edits of files that the template deletes or renames,
# binaries that both changed, and ignored files in the way; and a change may land in the wrong one
# of several equal blocks.
SAFE = [
    [edited_another_function, edited_adjacent_line, added_file_of_the_same_name, own_model],
    [edited_same_line],
    [deleted],
    [renamed],
    [crlf],
]


@pytest.mark.parametrize(
    "states",
    SAFE if EVERY else SAFE[:1],
    ids=lambda states: "-".join(state.__name__ for state in states),
)
def test_plain_copier_update(
    states: list[State], make_project: MakeProject, environment: dict[str, str]
) -> None:
    folder = make_project("v0.1.0")
    rendered = read_files(folder)
    for state in states:
        state(folder)
    commit(folder)
    before = read_files(folder)
    copier_update(folder, environment)
    assert lost_edits(folder, before, rendered) == []
    assert read_answers(folder)["_commit"] == "v0.3.0"


def copier_update(folder: Path, environment: dict[str, str]) -> None:
    """Run `copier update` without --trust and without a network."""
    command = [
        str(Path(sys.executable).parent / "copier"),
        "update",
        "--defaults",
    ]
    offline = environment | {
        "https_proxy": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
    }
    result = subprocess.run(
        command, cwd=folder, env=offline, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_plain_copier_update_from_the_own_bundle(
    fastproj: Fastproj, environment: dict[str, str], tmp_path: Path
) -> None:
    shutil.copy(Path(environment["HOME"]) / ".gitconfig", tmp_path / ".gitconfig")
    fastproj("new", "proj", "--yes", cwd=tmp_path, HOME=str(tmp_path))
    folder = tmp_path / "proj"
    bundle = tmp_path / ".fastproj/template.bundle"
    edit(folder / "README.md", "## Files", "## My files")
    (folder / "src/proj/model.py").write_text("# mine\n")
    (folder / "LICENSE").unlink()  # copier then reads `_skip_if_exists` before there are answers
    (folder / "Makefile").rename(folder / "makefile")
    commit(folder)
    git(tmp_path, "clone", "-q", str(bundle), "template")
    (tmp_path / "template/template/project/NEW.md").write_text("# New\n")
    (tmp_path / "template/template/models/resnet/model.py").write_text("# newer\n")
    commit(tmp_path / "template")
    git(tmp_path / "template", "tag", "v99.0.0")
    git(tmp_path / "template", "bundle", "create", "-q", str(bundle), "--tags")
    copier_update(
        folder, environment | {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / ".config")}
    )
    assert (read_answers(folder)["_commit"], read_answers(folder)["_src_path"]) == (
        "v99.0.0",
        "~/.fastproj/template.bundle",
    )
    assert (folder / "NEW.md").is_file()
    assert "## My files" in (folder / "README.md").read_text()
    assert (folder / "src/proj/model.py").read_text() == "# mine\n"
    assert not (folder / "LICENSE").exists()


@pytest.mark.test_all
def test_copier_renders_and_updates_every_entry(
    origin: tuple[Repository, dict[str, str]], tmp_path: Path, environment: dict[str, str]
) -> None:
    repository, _ = origin
    found = built(repository.folder, tmp_path)
    for version in found:
        copier.run_copy(
            str(tmp_path / "template.bundle"),
            tmp_path / version,
            vcs_ref=f"v{version}",
            defaults=True,
            quiet=True,
        )
        assert f"_commit: v{version}\n" in (tmp_path / version / ".copier-answers.yml").read_text()
    project = Repository(tmp_path / "0.1.0")
    assert (project.folder / "old.txt").exists()
    project.start()
    project.write({"mine.txt": "mine\n", "README.md": "# proj\n\nmine\n"})
    project.commit("Mine")
    copier_update(project.folder, environment)
    assert "_commit: v0.3.0\n" in (project.folder / ".copier-answers.yml").read_text(), (
        "the newest that is no .dev"
    )
    assert (project.folder / "new.txt").read_text() == "one\ntwo\nthree\nfour\n"
    assert not (project.folder / "old.txt").exists()
    assert (project.folder / "README.md").read_text() == "# proj\n\nmine\n"
