"""Projects of every release, with edits, are updated to the present template."""

import functools
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import template_bundle as bundle
import yaml
from matrix import EVERY, MODELS, ROOT, UPDATE_SOURCE
from packaging.version import Version
from program import Fastproj
from updating import commit, edit, git, lost_edits, read_files

NEW_MODELS = ("bert", "diffusion")
"""Models that these releases did not have."""
RELEASED = sorted(bundle.releases(ROOT))
PACKAGE = Path("src/proj")
Files = dict[str, tuple[str, bytes]]


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


STATES = [(RELEASED[0], edited), ("0.3.0", moved), (RELEASED[-1], moved)] if RELEASED else []
STATES = [*product(RELEASED, (unedited, edited, moved))] if EVERY else [*dict.fromkeys(STATES)]


@pytest.mark.parametrize(
    ("version", "state"), STATES, ids=[f"{version}-{it.__name__}" for version, it in STATES]
)
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
    # The recipe of another model would replace the user's; the network stays the user's.
    own_recipe = state is edited
    options = ["--model", "resnet", "--gpus", "2"]
    result = fastproj(
        "update",
        *options,
        cwd=folder,
        status=4 if own_recipe else 0,
    )
    assert ("yours     src/proj/model.py" in result.stdout) == (state is edited)
    assert lost_edits(folder, before, rendered) == []
    found = yaml.safe_load((folder / ".copier-answers.yml").read_text())
    # a part of every project for GPUs until 0.3, a component since
    components = ["gpu-ci"] if Version(version) < Version("0.4") else []
    assert (found["model"], found["components"], found["gpus"]) == ("resnet", components, 2)
    conflicts = {line.split("\t")[1] for line in git(folder, "ls-files", "-u").splitlines()}
    expected = {"configs/default.yaml"} if own_recipe else set()
    rewritten = {"README.md", "src/proj/log.py", "src/proj/metrics.py"} if own_recipe else set()
    assert expected <= conflicts <= expected | rewritten
    fastproj("status", "--json", cwd=folder)


@pytest.fixture(scope="module")
def fresh(fastproj: Fastproj, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Files]:
    """Return the files of a new project of a model."""

    @functools.cache
    def render(model: str) -> Files:
        output = tmp_path_factory.mktemp("fresh")
        answers = ["--author=The authors", f"--model={model}"]
        fastproj(
            "new",
            "proj",
            "--yes",
            "--no-git",
            *answers,
            "--output",
            str(output),
        )
        return read_files(output / "proj")

    return render


@pytest.mark.parametrize(
    "model", [it for it in MODELS if it not in NEW_MODELS] if EVERY else ["mlp"]
)
@pytest.mark.parametrize("version", RELEASED if EVERY else sorted({*RELEASED[:1], *RELEASED[-2:]}))
def test_unedited_project_becomes_the_small_one(
    version: str,
    model: str,
    released: Callable[[str, str], Path],
    fresh: Callable[[str], Files],
    fastproj: Fastproj,
) -> None:
    folder = released(version, model)
    fastproj("update", cwd=folder)
    assert read_files(folder) == fresh(model)
    assert not [
        line for line in git(folder, "status", "--porcelain").splitlines() if line[1] != " "
    ], "all is staged"


def test_edited_files_without_a_successor_are_kept_and_named(
    released: Callable[[str, str], Path], fresh: Callable[[str], Files], fastproj: Fastproj
) -> None:
    folder = released("0.3.0", "mlp")
    (folder / PACKAGE / "own.py").write_text("OWN = 1\n")
    append(folder / PACKAGE / "progress.py", "MINE = 1\n")
    append(folder / "src/proj/tools/show.py", "MINE = 2\n")
    (folder / PACKAGE / "parts.py").chmod(0o755)
    (folder / PACKAGE / "run_folder.py").rename(folder / PACKAGE / "place.py")
    commit(folder)
    result = fastproj("update", cwd=folder)
    kept = {f"src/proj/{it}.py" for it in ("progress", "tools/show", "parts", "place")}
    assert {
        line.split()[1].rstrip(":")
        for line in result.stdout.splitlines()
        if "no longer rendered" in line
    } == kept
    assert read_files(folder).keys() - fresh("mlp").keys() == kept | {"src/proj/own.py"}


@pytest.mark.test_all
def test_plain_copier_update_reads_launchers_and_workflow_as_components(
    released: Callable[[str, str], Path], fastproj: Fastproj, environment: dict[str, str]
) -> None:
    folder = released("0.3.0", "mlp")
    answers = [
        "launchers=multinode,slurm",
        "update_workflow=true",
        f"update_source={UPDATE_SOURCE}",
    ]
    data = [f"--data={answer}" for answer in answers]
    fastproj("update", "--to=v0.3.0", *data, cwd=folder)
    commit(folder)
    command = [
        str(Path(sys.executable).parent / "copier"),
        "update",
        "--defaults",
        "--prereleases",
    ]
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    found = yaml.safe_load((folder / ".copier-answers.yml").read_text())
    assert (found["components"], "launchers" in found) == (
        ["multinode", "slurm", "update-workflow"],
        False,
    )
    assert found["update_source"] == UPDATE_SOURCE
    assert (folder / ".github/workflows/update.yml").exists()


@pytest.mark.parametrize("framework", ["lightning", "accelerate"] if EVERY else ["lightning"])
def test_project_of_another_framework_keeps_its_edits(
    framework: str, released: Callable[[str, str], Path], fastproj: Fastproj
) -> None:
    folder = released("0.3.0", "mlp")
    answers = ["--data", f"framework={framework}", "--to=v0.3.0"]
    fastproj("update", *answers, cwd=folder)
    edit(folder / PACKAGE / "speed.py", '"""', '"""Mine: ')
    edit(folder / PACKAGE / "model.py", '"""', '"""My own network: ')
    commit(folder)
    result = fastproj("update", cwd=folder)
    for name, text in (("speed.py", '"""Mine: '), ("model.py", '"""My own network: ')):
        assert (folder / PACKAGE / name).read_text().startswith(text)
        assert re.search(rf"^  yours     src/proj/{name}: ", result.stdout, re.MULTILINE)
    assert not (folder / PACKAGE / "techniques").exists()
    assert f"{framework}>=" in (folder / "pyproject.toml").read_text()


@pytest.mark.test_all
def test_workflow_of_0_2_0_waits_for_a_source(
    released: Callable[[str, str], Path], fastproj: Fastproj
) -> None:
    folder = released("0.2.0", "mlp")
    workflow = folder / ".github/workflows/update.yml"

    def update(*options: str) -> str:
        result = fastproj(*options, cwd=folder)
        commit(folder)
        return result.stdout

    update("update", "--to", "v0.2.0", "--data", "update_workflow=true")
    assert workflow.exists()
    assert "removed   .github/workflows/update.yml" in update("update")
    assert not workflow.exists(), "it installed the program by a name"
    result = fastproj("add", "update-workflow", cwd=folder, status=2)
    assert "update_source has no default: answer it with --data update_source" in result.stderr


def append(file: Path, text: str) -> None:
    with file.open("a") as opened:
        opened.write(text)
