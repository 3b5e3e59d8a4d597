"""`fastproj adopt` links a repository without an answers file to its release again."""

import shutil
from pathlib import Path

import pytest
import yaml
from program import Fastproj
from updating import MakeProject, commit, edit, git, read_files


def test_adopt_finds_the_nearest_release_and_answers(make_project: MakeProject, fastproj: Fastproj) -> None:
    folder = make_project("v0.2.0")
    recorded = yaml.safe_load((folder / ".copier-answers.yml").read_text())
    edit(folder / "src/proj/engine.py", "return 20", "return 21")
    (folder / ".copier-answers.yml").unlink()
    commit(folder)
    before = read_files(folder)
    given = ["--gpus", "0", "--model", "one", "--components", "none"]  # which saves the renderings that would tell them
    shown = fastproj("adopt", "--dry-run", *given, "--template", recorded["_src_path"], cwd=folder)
    assert shown.returncode == 0, shown.stderr
    assert read_files(folder) == before
    result = fastproj("adopt", "--template", recorded["_src_path"], cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "to v0.2.0 of" in result.stdout
    assert "1 of its" in result.stdout
    assert yaml.safe_load((folder / ".copier-answers.yml").read_text()) == recorded
    assert {path: content for path, content in read_files(folder).items() if path in before} == before
    assert git(folder, "status", "--porcelain") == "?? .copier-answers.yml"
    commit(folder)
    assert fastproj("update", "--yes", cwd=folder).returncode == 0
    assert "return 21" in (folder / "src/proj/engine.py").read_text()
    again = fastproj("adopt", cwd=folder)
    assert (again.returncode, "links the project already" in again.stderr) == (1, True)


def test_adopt_infers_answers_from_the_files(fastproj: Fastproj, tmp_path: Path) -> None:
    """The real template: numbers and names come from the files, models and components from the nearest rendering."""
    chosen = ["--gpus", "4", "--nodes", "3", "--tensor-cores", "fp16", "--model", "gpt", "--components", "slurm"]
    chosen += ["--author", "Grace Hopper", "--licence", "BSD-3-Clause"]
    result = fastproj("new", "my-proj", "--yes", *chosen, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "my-proj"
    recorded = yaml.safe_load((folder / ".copier-answers.yml").read_text())
    (folder / "src/my_proj/model.py").write_text("# a network of my own\n")
    (folder / ".copier-answers.yml").unlink()
    known = ["--framework", "pytorch", "--licence", "BSD-3-Clause"]
    result = fastproj("adopt", *known, cwd=folder)
    assert result.returncode == 0, result.stderr
    assert yaml.safe_load((folder / ".copier-answers.yml").read_text()) == recorded
    assert "gpus = 4 (from the files)" in result.stdout
    assert "model = gpt (nearest)" in result.stdout


def test_adopt_restores_a_missing_version(make_project: MakeProject, fastproj: Fastproj) -> None:
    folder = make_project("v0.1.0")
    file = folder / ".copier-answers.yml"
    recorded = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({key: value for key, value in recorded.items() if key != "_commit"}))
    result = fastproj("adopt", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert yaml.safe_load(file.read_text()) == recorded


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "three"], "three"),
        (["--template", "/no/where"], "not on this machine"),
        (["/nowhere"], "not a folder"),
        ([], "does not look like a rendering"),
    ],
)
def test_adopt_refuses_other_repositories(
    options: list[str], message: str, make_project: MakeProject, fastproj: Fastproj, tmp_path: Path
) -> None:
    template = yaml.safe_load((make_project() / ".copier-answers.yml").read_text())["_src_path"]
    shutil.rmtree(tmp_path / "proj")
    (tmp_path / "other/src").mkdir(parents=True)
    (tmp_path / "other/src/a.py").write_text("a = 1\n")
    before = read_files(tmp_path)
    place = [] if "--template" in options else ["--template", template]
    result = fastproj("adopt", *place, *options, cwd=tmp_path / "other")
    assert result.returncode == (2 if message == "three" else 1)
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert read_files(tmp_path) == before
