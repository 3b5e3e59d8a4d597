"""Another data.py and model.py than the example's: the tools do what they can, and `make own` removes the rest."""

import json
import re
import shutil
from pathlib import Path

import pytest
from matrix import ENGINE_MODEL, FRAMEWORKS, TEMPLATE
from program import PROGRAMS, Project
from updating import commit, git
from warm import run_python

SKELETON = TEMPLATE / "project/src/{{ package }}/tools/skeleton"
READERS = {file.name for file in (TEMPLATE / "project/src/{{ package }}/readers").glob("*.py")}
TRAINED = ["--config=configs/smoke.yaml", "--run.device=cpu", "--run.name=a"]


def skeleton(name: str) -> str:
    return (SKELETON / name).read_text().replace("from ...", "from .")


def own(folder: Path, *options: str) -> tuple[int | None, str]:
    result = run_python(folder, "-m", "proj.tools.own", *options)
    assert "Traceback" not in result.stderr
    return result.returncode, result.stdout + result.stderr


def use_tools(folder: Path, *options: str) -> dict[str, str]:
    """Return what each tool prints."""
    result = run_python(folder, str(PROGRAMS / "use_tools.py"), "runs/a", *options)
    assert "Traceback" not in result.stderr
    _, *parts = re.split(r"^-- (\w+)\n", result.stdout, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_every_tool_of_some_models_only_is_removed() -> None:
    own = (SKELETON.parent / "own.py").read_text()
    names = [re.sub(r"{%.*?%}", "", file.name).removesuffix(".jinja") for file in SKELETON.parent.glob("*.jinja")]
    assert "task.py" in names
    assert [name for name in names if not re.search(rf'"(tools/)?{name}"', own)] == []


@pytest.mark.slow
def test_tools_and_own_with_another_problem(project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "proj"
    shutil.copytree(project(FRAMEWORKS[0], ENGINE_MODEL), folder, ignore=shutil.ignore_patterns("__pycache__"))
    package = folder / "src/proj"
    for name in ("data.py", "model.py"):
        (package / name).write_text(skeleton(name))
    (folder / "configs/default.yaml").write_text("optim:\n  lr: 1.0e-2\n")

    said = use_tools(folder, *TRAINED)
    unfit = r"tools/{}\.py does not fit data\.py and model\.py \(\w+Error at line \d+: .*\): change it"
    assert re.match(
        rf"accuracy .*\nloss .*\nno details and no plot: `Details` of {unfit.format('task')}", said["evaluate"]
    )
    assert re.match(
        rf"the exported model takes prepared inputs: `export_module` of {unfit.format('task')}", said["export"]
    )
    assert re.search(r"model.pt2: maximum difference from the original outputs 0\n", said["export"])
    assert re.search(rf"^no summary +`summary` of {unfit.format('view')}", said["show"], re.MULTILINE)
    assert re.search(
        rf"^batch\[1\] +\(16,\) int64\nbatch\[0\] +mean .*\nno plot +`plot` of {unfit.format('view')}",
        said["show"],
        re.MULTILINE,
    )
    assert said["predict"].count("\n") == 1
    metrics = next(folder.glob("runs/a/checkpoints/*/evaluation.json"))
    assert json.loads(metrics.read_text()).keys() == {"loss", "accuracy"}

    status, refused = own(folder)
    assert status == 1
    assert re.fullmatch(
        r"error: there are changes that are not committed \(.*\): commit them first, or add --force\n", refused
    )
    commit(folder)
    status, kept = own(folder)
    assert status == 0
    assert "kept      src/proj/data.py, which you have changed" in kept
    assert (package / "data.py").read_text() == skeleton("data.py")
    assert (package / "readers/table.py").exists(), "which a data.py that was changed may read"
    assert not (package / "tools/task.py").exists()

    git(folder, "reset", "--quiet", "--hard", "HEAD~1")
    status, replaced = own(folder)
    assert status == 0
    assert "replaced  src/proj/data.py: write yours there" in replaced
    assert all((package / name).read_text() == skeleton(name) for name in ("data.py", "model.py"))
    assert {file.name for file in (package / "readers").glob("*.py")} == READERS
    assert not [*(package / "tests").glob("test_data.py"), *(package / "tests").glob("test_network.py")]
    commit(folder)
    assert own(folder) == (
        1,
        "error: nothing of the example is left: data.py, model.py and configs/default.yaml are yours to edit\n",
    )
    shutil.rmtree(folder / ".git")
    assert own(folder)[1].startswith("error: no git repository could bring back what is removed")

    said = use_tools(folder)
    absent = "there is no tools/{}.py: write one with `{}`, see contracts.py\n"
    assert f"no details and no plot: {absent.format('task', 'Details')}" in said["evaluate"]
    assert "model.pt2: maximum difference" in said["export"]
    assert said["predict"] == f"error: {absent.format('task', 'predict')}"
    assert f"no summary      {absent.format('view', 'summary')}" in said["show"]
