"""`fastproj update` with new questions, another model, an older release, another machine."""

import shutil
from pathlib import Path

import pytest
from edits import PACKAGE, edited_another_function, own_model
from matrix import EVERY
from program import Fastproj
from updating import MakeProject, commit, edit, git, lost_edits, read_answers, read_files


def test_update_changes_answers(make_project: MakeProject, fastproj: Fastproj) -> None:
    folder = make_project("v0.2.0")
    edited_another_function(folder)
    commit(folder)
    result = fastproj(
        "update", "--to", "v0.2.0", "--gpus", "8", "--components", "slurm", cwd=folder
    )
    assert "gpus: 0 -> 8" in result.stdout
    assert (folder / "job.sbatch").is_file()
    assert "8 GPUs" in (folder / "README.md").read_text()
    recorded = read_answers(folder)
    assert (recorded["gpus"], recorded["tensor_cores"], recorded["components"]) == (
        8,
        "bf16",
        ["slurm"],
    )
    assert recorded["_commit"] == "v0.2.0"
    commit(folder)
    result = fastproj("update", "--to", "v0.2.0", "--gpus", "0", cwd=folder)
    assert "tensor_cores: bf16 -> (no longer asked)" in result.stdout
    assert "tensor_cores" not in read_answers(folder)
    commit(folder)
    result = fastproj("update", "--to", "v0.2.0", "--gpus", "0", cwd=folder)
    assert "is up to date" in result.stdout
    assert git(folder, "status", "--porcelain") == ""


def test_edited_model_file_is_kept_also_with_another_model(
    make_project: MakeProject, fastproj: Fastproj
) -> None:
    folder = make_project("v0.1.0")
    model = folder / PACKAGE / "model.py"
    own_model(folder)
    commit(folder)
    result = fastproj("update", "--gpus", "2", cwd=folder)
    assert "yours     src/proj/model.py" in result.stdout
    assert model.read_text() == "# a network of my own\nSIZE = 99\n"
    git(folder, "reset", "-q", "--hard")
    result = fastproj("update", "--model", "two", cwd=folder)
    assert "model: one -> two" in result.stdout
    assert (
        "yours     src/proj/model.py: kept with your changes; the template has a newer version"
        in result.stdout
    )
    assert model.read_text() == "# a network of my own\nSIZE = 99\n"


def test_model_file_without_edits_becomes_the_new_models(
    make_project: MakeProject, fastproj: Fastproj
) -> None:
    folder = make_project("v0.1.0")
    fastproj("update", "--model", "two", cwd=folder)
    assert (folder / PACKAGE / "model.py").read_text().startswith("# the network two\n")


def test_older_version_keeps_the_edits(make_project: MakeProject, fastproj: Fastproj) -> None:
    folder = make_project("v0.2.0")
    rendered = read_files(folder)
    edited_another_function(folder)
    commit(folder)
    before = read_files(folder)
    fastproj("update", "--to", "0.1.0", cwd=folder)
    assert read_answers(folder)["_commit"] == "v0.1.0"
    assert lost_edits(folder, before, rendered) == []


@pytest.mark.usefixtures("small_template")
def test_update_on_another_machine(fastproj: Fastproj, tmp_path: Path, home: Path) -> None:
    """The recorded location of the own template is the same on every machine."""
    fastproj("new", "proj", "--yes", cwd=tmp_path)
    folder = tmp_path / "proj"
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(home / ".gitconfig", other / ".gitconfig")
    fastproj("update", "--gpus", "2", cwd=folder, HOME=str(other))
    assert read_answers(folder)["_src_path"] == "~/.fastproj/template.bundle"
    assert read_answers(folder)["gpus"] == 2
    git(folder, "reset", "-q", "--hard")
    (tmp_path / "file").touch()
    result = fastproj(
        "update",
        "--gpus",
        "2",
        cwd=folder,
        HOME=str(tmp_path / "file"),
        status=1,
    )
    assert "FASTPROJ_HOME" in result.stderr
    moved = {"HOME": str(tmp_path / "file"), "FASTPROJ_HOME": str(tmp_path / "moved")}
    fastproj("update", "--gpus", "2", cwd=folder, **moved)
    assert read_answers(folder)["_src_path"] == "~/.fastproj/template.bundle"
    assert str(tmp_path) not in git(folder, "diff", "--staged")


@pytest.mark.parametrize("tag", ["2025.10", "1.0", "1"] if EVERY else ["2025.10"])
def test_version_that_looks_like_a_number(
    tag: str, make_project: MakeProject, fastproj: Fastproj, fork: Path
) -> None:
    folder = make_project("v0.3.0")
    for old in git(fork, "tag").split():
        if old != "v0.3.0":
            git(fork, "tag", "-d", old)
    edit(fork / "project/README.md.jinja", "About", "About it")
    commit(fork)
    git(fork, "tag", tag)
    from_fork = ["--template", str(fork)]
    fastproj("update", *from_fork, "--to", tag, cwd=folder)
    assert read_answers(folder)["_commit"] == tag
    commit(folder)
    assert f"version   {tag}, the newest" in fastproj("status", cwd=folder).stdout
    edit(fork / "project/README.md.jinja", "About it", "About that")
    commit(fork)
    git(fork, "tag", "2026.1")
    # as earlier versions wrote it
    edit(folder / ".copier-answers.yml", f"_commit: '{tag}'", f"_commit: {tag}")
    commit(folder)
    fastproj("update", cwd=folder)
    assert read_answers(folder)["_commit"] == "2026.1"
