"""Every combination renders, is clean, and its Python is the template's to the byte; every model trains to its bar."""

import json
import operator
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from matrix import (
    COVER,
    ENTRIES,
    FRAMEWORKS,
    HARDWARE,
    HARDWARE_COVER,
    MODELS,
    PAIRS,
    QUESTIONS,
    READERS,
    ROOT,
    first_with,
)
from program import Project, run_in

TEMPLATE = ROOT / "template"
EVERY = os.environ.get("EVERY_TEST") == "1"
SOME = PAIRS if EVERY else COVER
ALL = [(*pair, hardware) for pair in PAIRS for hardware in HARDWARE] if EVERY else HARDWARE_COVER


def python_parts(framework: str, model: str) -> dict[str, Path]:
    """Return the part of the template that each rendered Python file must equal, by its place."""
    data, task = ENTRIES[model]["data"], ENTRIES[model]["task"]
    skeleton = TEMPLATE / "project"
    parts = {str(file.relative_to(skeleton)).replace("{{ package }}", "proj"): file for file in skeleton.rglob("*.py")}
    parts |= {f"src/proj/readers/{name}.py": TEMPLATE / f"readers/{name}.py" for name in READERS[data]}
    if "text" in READERS[data]:
        parts["src/proj/tools/text_generation.py"] = TEMPLATE / "tasks/text_generation.py"
    if "needs" in QUESTIONS["frameworks"]["default"][framework]:
        parts["src/proj/framework.py"] = TEMPLATE / "frameworks/framework.py"
    return parts | {
        "src/proj/model.py": TEMPLATE / f"models/{model}/model.py",
        "src/proj/data.py": TEMPLATE / f"data/{data}/data.py",
        "src/proj/train.py": TEMPLATE / f"frameworks/{framework}/train.py",
        "src/proj/tools/task.py": TEMPLATE / f"tasks/{task}/task.py",
        "src/proj/tools/view.py": TEMPLATE / f"data/{data}/view.py",
        "src/proj/tests/test_data.py": TEMPLATE / f"data/{data}/test_data.py",
        "src/proj/tests/test_network.py": TEMPLATE / f"models/{model}/test_network.py",
        "src/proj/tests/test_task.py": TEMPLATE / f"tasks/{task}/test_task.py",
    }


def parts_on_disk(folder: str) -> dict[str, set[str]]:
    """Return each part of a kind with the names of its files."""
    parts = (part for part in (TEMPLATE / folder).iterdir() if part.is_dir())
    return {part.name: {file.name for file in part.iterdir() if file.is_file()} for part in parts}


def test_parts_on_disk_match_the_choices() -> None:
    kinds, tasks = ({entry[key] for entry in ENTRIES.values()} for key in ("data", "task"))
    assert parts_on_disk("models") == {name: {"model.py", "default.yaml", "test_network.py"} for name in MODELS}
    assert parts_on_disk("frameworks") == {name: {"train.py"} for name in FRAMEWORKS}
    assert parts_on_disk("data") == {name: {"data.py", "view.py", "test_data.py", "requirements"} for name in kinds}
    assert parts_on_disk("tasks") == {name: {"task.py", "test_task.py"} for name in tasks}
    assert set(READERS) == kinds
    assert {file.stem for file in (TEMPLATE / "readers").glob("*.py")} == {
        name for names in READERS.values() for name in names
    }


def test_no_jinja_in_python() -> None:
    tagged = [file for file in TEMPLATE.rglob("*.py") if re.search(r"\{\{|\{%|\{#", file.read_text())]
    assert tagged == []


@pytest.mark.parametrize(("framework", "model", "hardware"), ALL)
def test_rendering_is_complete_and_clean(project: Project, framework: str, model: str, hardware: str) -> None:
    folder = project(framework, model, hardware)
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=folder, capture_output=True, text=True, check=True).stdout
    files = [folder / name for name in tracked.split("\0") if name]
    on_disk = {file for file in folder.rglob("*") if file.is_file() and ".git" not in file.relative_to(folder).parts}
    assert set(files) == on_disk, "the first commit holds every file"
    for file in files:
        text = file.read_text()
        assert text == "" or (text.endswith("\n") and not text.endswith("\n\n")), f"{file} ends badly"
        if ".github" in file.parts:
            text = text.replace("${{", "")
        assert not re.search(r"\{\{|\{%|%\}|\{#", text), f"{file} has Jinja left"
        assert str(ROOT) not in text
    python = {str(file.relative_to(folder)): file.read_bytes() for file in files if file.suffix == ".py"}
    assert python == {place: part.read_bytes() for place, part in python_parts(framework, model).items()}

    if hardware != next(iter(HARDWARE)):
        return  # the Python is that of the first, to the byte
    for command in (["ruff", "format", "--check", "."], ["ruff", "check", "."], ["compileall", "-q", "src"]):
        result = run_in(folder, sys.executable, "-m", *command)
        assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(("framework", "model", "hardware"), ALL)
def test_non_python_files_are_valid(project: Project, framework: str, model: str, hardware: str) -> None:
    folder = project(framework, model, hardware)
    tomllib.loads((folder / "pyproject.toml").read_text())
    yamls = [*folder.rglob("*.yml"), *folder.rglob("*.yaml")]
    assert len(yamls) == (7 if "--update-workflow" in HARDWARE[hardware] else 6)
    rules: dict[str, object] = {
        "line-length": {"max": 160},
        "document-start": "disable",
        "truthy": {"check-keys": False},
    }
    rules["indentation"] = {"indent-sequences": "whatever"}  # as copier writes its answers
    scripts = [str(file) for file in (folder / "launch").iterdir()]
    checks = [
        ["yamllint", "--strict", "-d", json.dumps({"extends": "default", "rules": rules}), *map(str, yamls)],
        [
            "check-jsonschema",
            "--builtin-schema",
            "vendor.github-workflows",
            *map(str, folder.glob(".github/workflows/*")),
        ],
        ["zizmor", "--offline", "--no-progress", "--persona", "pedantic", str(folder / ".github")],
        ["shellcheck", *scripts],
    ]
    for tool, *arguments in checks:
        result = run_in(folder, str(Path(sys.executable).parent / tool), *arguments)
        assert result.returncode == 0, result.stdout + result.stderr
    assert all(Path(script).stat().st_mode & 0o111 for script in scripts)
    makefile = subprocess.run(["make", "--dry-run", "setup"], cwd=folder, capture_output=True, text=True, check=False)
    assert makefile.returncode == 0, makefile.stderr


@pytest.mark.parametrize("hardware", HARDWARE)
def test_answers_reach_the_config_and_the_launchers(project: Project, hardware: str) -> None:
    folder = project(FRAMEWORKS[0], MODELS[0], hardware)
    speed = yaml.safe_load((folder / "configs/default.yaml").read_text())["speed"]
    expected = {"cpu": ("auto", "off"), "gpu": ("fp16", "model"), "gpus": ("bf16", "model"), "nodes": ("bf16", "model")}
    assert (speed["precision"], speed["compile"]) == expected[hardware]
    gpus = {"cpu": 1, "gpu": 1, "gpus": 4, "nodes": 8}[hardware]
    assert f"PROCESSES:-{gpus}" in (folder / "launch/local.sh").read_text()
    launchers = {"cpu": set(), "gpu": set(), "gpus": {"slurm.sbatch"}, "nodes": {"slurm.sbatch", "multinode.sh"}}
    assert {file.name for file in (folder / "launch").iterdir()} == {"local.sh", *launchers[hardware]}


IMPORTED = """
import sys
from proj.train import main, train
main(train, sys.argv[1:])
print("imported", *(module.__file__ for name, module in sys.modules.items() if name.startswith("proj.")))
"""


@pytest.mark.parametrize(("framework", "model"), SOME)
def test_default_run_imports_few_lines(project: Project, tmp_path: Path, framework: str, model: str) -> None:
    """It imports no technique but what its recipe enables. Config, contracts, model and data are not the engine."""
    small = ["--config=configs/default.yaml", "--config=configs/smoke.yaml", "--run.device=cpu", "--train.steps=2"]
    small += ["--optim.name=adamw"]
    result = run_in(project(framework, model), sys.executable, "-c", IMPORTED, *small, f"--run.dir={tmp_path}")
    assert result.returncode == 0, result.stderr
    files = [Path(file) for file in result.stdout.splitlines()[-1].split()[1:]]
    names = {file.name for file in files}
    assert {"train.py", "model.py", "data.py", "loaders.py", "config.py", "checkpoint.py"} <= names
    assert [
        file
        for file in files
        if file.parent.name in ("techniques", "tools") and file.name not in ("__init__.py", "framework.py")
    ] == []
    sizes = {file: sum(bool(line.strip()) for line in file.read_text().splitlines()) for file in files}
    not_engine = {"config.py", "contracts.py", "model.py", "data.py"}
    parts = {"readers", "techniques"}
    engine = sum(size for file, size in sizes.items() if file.name not in not_engine and file.parent.name not in parts)
    print(f"{framework} {model}: {engine} lines, with all modules but config.py {sum(sizes.values())}")
    assert engine <= (1350 if framework == FRAMEWORKS[0] else 1520)


def test_readme_lists_every_file(project: Project) -> None:
    folder = project(FRAMEWORKS[0], MODELS[0], "nodes")
    readme = (folder / "README.md").read_text()
    assert "| `src/proj/techniques/` |" in readme
    assert "| `src/proj/readers/` |" in readme
    for file in [*folder.glob("src/proj/*.py"), *folder.glob("src/proj/tools/*.py"), *folder.glob("launch/*")]:
        assert file.name == "__init__.py" or f"| `{file.relative_to(folder)}` |" in readme


@pytest.mark.parametrize(("framework", "model"), SOME)
def test_strict_types(project: Project, mypy_cache: Path, framework: str, model: str) -> None:
    folder = project(framework, model)
    result = run_in(folder, sys.executable, "-m", "mypy", "--cache-dir", str(mypy_cache))
    assert result.returncode == 0, result.stdout


def rendered_tests(framework: str, model: str) -> list[str]:
    """Which of its test files a project runs here.

    The first framework's first model all; its others those that are about them, and every second one whole trainings;
    the other frameworks, between them, the engine's that train. With EVERY_TEST=1 all projects run all.
    """
    engine = sorted(file.name for file in (TEMPLATE / "project").glob("src/*/tests/test_*.py"))
    about = ["test_model.py", "test_network.py"]
    parts = [f"test_{key}.py" for key in ("data", "task") if first_with(key, model)]
    if EVERY or (framework, model) == PAIRS[0]:
        return sorted({*engine, *about, "test_data.py", "test_task.py"})
    if framework == FRAMEWORKS[0]:
        return [*about, *parts, *(["test_train.py"] if MODELS.index(model) % 2 else [])]
    always = {"test_ranks.py", "test_techniques.py", "test_train.py"}
    training = [name for name in engine if "from ..train import train" in _text(name) and name not in {*about, *always}]
    place = FRAMEWORKS.index(framework) - 1
    return sorted({*always, *training[place :: len(FRAMEWORKS) - 1]})


def _text(name: str) -> str:
    return next((TEMPLATE / "project").glob(f"src/*/tests/{name}")).read_text()


@pytest.mark.slow
@pytest.mark.timeout(1500)  # some 350 tests in one
@pytest.mark.parametrize(("framework", "model"), SOME)
def test_rendered_tests_pass(project: Project, framework: str, model: str) -> None:
    folder = project(framework, model)
    files = [f"src/proj/tests/{name}" for name in rendered_tests(framework, model)]
    result = run_in(folder, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files)
    assert result.returncode == 0, result.stdout
    assert re.search(r"\d+ passed", result.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "model"), SOME)
def test_recipe_reaches_expected_metric(project: Project, tmp_path: Path, framework: str, model: str) -> None:
    folder = shutil.copytree(project(framework, model), tmp_path / "proj")
    bar = re.search(r"^# Expect: (\w+) (<=|<|>=) ([\d.]+)", (folder / "configs/default.yaml").read_text(), re.MULTILINE)
    assert bar is not None, "the recipe says what to expect"
    result = run_in(folder, "launch/local.sh", "--run.name=bar", "--run.device=cpu")
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in (folder / "runs/bar/metrics.jsonl").read_text().splitlines()]
    value = [row for row in rows if row["split"] == "val"][-1][bar[1]]
    print(f"{framework} {model}: {bar[1]} {value}")
    assert {"<": operator.lt, "<=": operator.le, ">=": operator.ge}[bar[2]](value, float(bar[3]))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_launchers_start_two_ranks(project: Project, tmp_path: Path, framework: str) -> None:
    model = MODELS[FRAMEWORKS.index(framework) % len(MODELS)]
    folder = shutil.copytree(project(framework, model, "nodes"), tmp_path / "proj")
    small = ["--config=configs/smoke.yaml", "--run.device=cpu", "--train.steps=2", "--log.tensorboard=false"]
    local = run_in(folder, "launch/local.sh", *small, "--run.name=local", PROCESSES="2")
    assert local.returncode == 0, local.stderr
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nodes = [
        subprocess.Popen(
            ["launch/multinode.sh", *small, "--run.name=nodes"],
            cwd=folder,
            env=_node(folder, rank, port),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    printed = [process.communicate(timeout=300)[0] for process in nodes]
    assert [process.returncode for process in nodes] == [0, 0], printed
    rows = [(folder / "runs" / name / "metrics.jsonl").read_text().splitlines() for name in ("local", "nodes")]
    losses = [[json.loads(line)["loss"] for line in lines] for lines in rows]
    assert losses[0] == losses[1]


def _node(folder: Path, rank: int, port: int) -> dict[str, str]:
    place = {"NODE_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PROCESSES": "1"}
    return {**os.environ, **place, "PYTHONPATH": str(folder / "src"), "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
