"""Projects of every released version of the template, with edits, are updated to the present one."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from fastproj.shared import bundle
from matrix import EVERY, ROOT, UPDATE_SOURCE
from program import Fastproj
from updating import commit, edit, git, lost_edits, read_files

RELEASED = sorted(bundle.releases(ROOT))
PACKAGE = Path("src/proj")


def unedited(project: Path) -> None:
    pass


def edited(project: Path) -> None:
    edit(project / PACKAGE / "log.py", '"""', '"""Mine: ')
    edit(project / "README.md", "\n## ", "\n## My ")
    with (project / PACKAGE / "metrics.py").open("a") as file:
        file.write("\n\nMINE = 1\n")
    edit(project / PACKAGE / "model.py", '"""', '"""My own network: ')
    (project / PACKAGE / "extra.py").write_text("MINE = 2\n")
    with (project / "configs/default.yaml").open("a") as file:
        file.write("# mine\n")


def moved(project: Path) -> None:
    (project / PACKAGE / "optim.py").rename(project / PACKAGE / "optimizer.py")
    (project / "Makefile").unlink()
    (project / "launch/local.sh").chmod(0o644)
    (project / PACKAGE / "errors.py").write_bytes(
        (project / PACKAGE / "errors.py").read_bytes().replace(b"\n", b"\r\n")
    )


def test_there_are_releases() -> None:
    if git(ROOT, "rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("a shallow clone has no releases to update from: git fetch --unshallow")
    assert "0.1.0" in RELEASED


STATES = [
    (version, state)
    for version in RELEASED
    for state in (unedited, edited, moved)
    if EVERY or state is edited or version in (RELEASED[0], RELEASED[-1])
]


@pytest.mark.parametrize(("version", "state"), STATES, ids=[f"{version}-{it.__name__}" for version, it in STATES])
def test_update_loses_no_edit(
    version: str,
    state: Callable[[Path], None],
    released: Callable[[str, str], Path],
    fastproj: Fastproj,
    tmp_path: Path,
) -> None:
    folder = released(version, "mlp")
    rendered = read_files(folder)
    state(folder)
    if state is not unedited:
        commit(folder)
    before = read_files(folder)
    result = fastproj("update", "--yes", "--model", "resnet", "--framework", "lightning", "--gpus", "2", cwd=folder)
    # The user's network and recipe, which those of another model would replace.
    own_model = state is edited
    assert result.returncode == (1 if own_model else 0), result.stdout + result.stderr
    assert lost_edits(folder, before, rendered) == []
    found = yaml.safe_load((folder / ".copier-answers.yml").read_text())
    assert (found["model"], found["framework"], found["gpus"]) == ("resnet", "lightning", 2)
    conflicts = {line.split("\t")[1] for line in git(folder, "ls-files", "-u").splitlines()}
    expected = {"configs/default.yaml", "src/proj/model.py"} if own_model else set()
    assert (
        expected
        <= conflicts
        <= (expected | {"README.md", "src/proj/log.py", "src/proj/metrics.py"} if own_model else expected)
    )
    assert fastproj("status", "--json", cwd=folder).returncode == 0
    if state is unedited:
        answers = ["--model", "resnet", "--framework", "lightning", "--gpus", "2", "--author", "The authors"]
        result = fastproj("new", "proj", "--yes", "--no-git", *answers, "--output", str(tmp_path))
        assert result.returncode == 0, result.stderr
        edit(tmp_path / "proj/.copier-answers.yml", "~/.local/share/fastproj/", "~/.fastproj/")  # an update keeps it
        assert read_files(folder) == read_files(tmp_path / "proj"), "as if it were new"


RENAMED = {
    "folder.py": "run_folder.py",
    "ranges.py": "config_base.py",
    "sources/frame.py": "readers/frame.py",
    "switches/__init__.py": "techniques/__init__.py",
    "switches/ema.py": "techniques/ema.py",
    "switches/recompute.py": "techniques/activation_checkpointing.py",
    "tests/test_switches.py": "tests/test_techniques.py",
    "tools/trained.py": "tools/trained_model.py",
    "tools/writing.py": "tools/atomic_file.py",
}


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_edits_in_files_that_0_3_0_renames_arrive(
    version: str, released: Callable[[str, str], Path], fastproj: Fastproj
) -> None:
    folder = released(version, "mlp")
    for was in RENAMED:
        with (folder / PACKAGE / was).open("a") as file:
            file.write(f"\n\nMINE = {was!r}\n")
    commit(folder)
    result = fastproj("update", "--yes", cwd=folder)
    assert result.returncode in (0, 1), result.stderr
    for was, now in RENAMED.items():
        assert f"MINE = {was!r}" in (folder / PACKAGE / now).read_text()
        assert not (folder / PACKAGE / was).exists() or f"MINE = {was!r}" not in (folder / PACKAGE / was).read_text()


def test_workflow_of_0_2_0_waits_for_a_source(released: Callable[[str, str], Path], fastproj: Fastproj) -> None:
    folder = released("0.2.0", "mlp")
    workflow = folder / ".github/workflows/update.yml"

    def update(*options: str) -> str:
        result = fastproj("update", "--yes", *options, cwd=folder)
        assert result.returncode == 0, result.stdout + result.stderr
        commit(folder)
        return result.stdout

    update("--to", "v0.2.0", "--update-workflow")
    assert workflow.exists()
    told = update()
    assert "update_source: (not asked) -> none" in told
    assert "removed   .github/workflows/update.yml" in told
    assert not workflow.exists(), "it installed the program by a name"
    assert fastproj("status", cwd=folder).returncode == 0
    update("--update-source", UPDATE_SOURCE)
    assert workflow.exists()
    update("--no-update-workflow")
    assert not workflow.exists()
    assert "update_source" not in (folder / ".copier-answers.yml").read_text()
    result = fastproj("update", "--yes", "--update-workflow", cwd=folder)
    assert result.returncode == 2
    assert "update_source has no default: answer it with --update-source" in result.stderr
