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
from conftest import Project, run_in
from matrix import FRAMEWORKS, HARDWARE, MODELS, PAIRS, QUESTIONS, ROOT

TEMPLATE = ROOT / "template"
ALL = [(framework, model, hardware) for framework, model in PAIRS for hardware in HARDWARE]


def python_parts(framework: str, model: str) -> dict[str, Path]:
    """Return the part of the template that each rendered Python file must equal, by its place."""
    data = QUESTIONS["models"]["default"][model]["data"]
    skeleton = TEMPLATE / "project"
    parts = {str(file.relative_to(skeleton)).replace("{{ package }}", "proj"): file for file in skeleton.rglob("*.py")}
    return parts | {
        "src/proj/model.py": TEMPLATE / "models" / f"{model}.py",
        "src/proj/data.py": TEMPLATE / "data" / f"{data}.py",
        "src/proj/tests/test_data.py": TEMPLATE / "data" / f"{data}_test.py",
        "src/proj/train.py": TEMPLATE / "frameworks" / f"{framework}.py",
    }


def test_parts_on_disk_are_those_that_are_offered() -> None:
    assert {file.stem for file in (TEMPLATE / "models").glob("*.py")} == set(MODELS)
    assert {file.stem for file in (TEMPLATE / "models").glob("*.yaml")} == set(MODELS)
    assert {file.stem for file in (TEMPLATE / "frameworks").glob("*.py")} == set(FRAMEWORKS)
    kinds = {entry["data"] for entry in QUESTIONS["models"]["default"].values()}
    assert {file.stem for file in (TEMPLATE / "data").glob("*.py")} == kinds | {f"{kind}_test" for kind in kinds}


def test_no_jinja_in_python() -> None:
    tagged = [file for file in TEMPLATE.rglob("*.py") if re.search(r"\{\{|\{%|\{#", file.read_text())]
    assert tagged == []


@pytest.mark.parametrize(("framework", "model", "hardware"), ALL)
def test_rendering_is_whole_and_clean(project: Project, framework: str, model: str, hardware: str) -> None:
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

    for command in (["ruff", "format", "--check", "."], ["ruff", "check", "."], ["compileall", "-q", "src"]):
        done = run_in(folder, sys.executable, "-m", *command)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("framework", "model", "hardware"), ALL)
def test_other_files_are_valid(project: Project, framework: str, model: str, hardware: str) -> None:
    folder = project(framework, model, hardware)
    tomllib.loads((folder / "pyproject.toml").read_text())
    yamls = [*folder.rglob("*.yml"), *folder.rglob("*.yaml")]
    assert len(yamls) == 6
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
        done = run_in(folder, str(Path(sys.executable).parent / tool), *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
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


def test_the_core_stays_small(project: Project) -> None:
    """The config is two lines a key; all else that a default run executes is read in one sitting."""
    for framework, model in PAIRS:
        package = project(framework, model) / "src/proj"
        files = [file for file in package.glob("*.py") if file.name != "config.py"]
        lines = [line for file in files for line in file.read_text().splitlines() if line.strip()]
        assert len(lines) <= 1300, f"{framework} {model}"


@pytest.mark.parametrize(("framework", "model"), PAIRS)
def test_a_default_run_imports_no_switch(project: Project, tmp_path: Path, framework: str, model: str) -> None:
    code = (
        "import sys; from proj.train import main; main(sys.argv[1:]); "
        "print('imported', sorted(name for name in sys.modules if name.startswith('proj.switches.')))"
    )
    small = ["--config=configs/default.yaml", "--config=configs/smoke.yaml", "--run.device=cpu", "--train.steps=2"]
    done = run_in(project(framework, model), sys.executable, "-c", code, *small, f"--run.dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "imported []" in done.stdout


def test_every_file_has_its_line_in_the_readme(project: Project) -> None:
    folder = project(FRAMEWORKS[0], MODELS[0], "nodes")
    readme = (folder / "README.md").read_text()
    assert "| `src/proj/switches/` |" in readme
    for file in [*folder.glob("src/proj/*.py"), *folder.glob("src/proj/tools/*.py"), *folder.glob("launch/*")]:
        assert file.name == "__init__.py" or f"| `{file.relative_to(folder)}` |" in readme


@pytest.mark.parametrize(("framework", "model"), PAIRS)
def test_strict_types(project: Project, framework: str, model: str) -> None:
    folder = project(framework, model)
    done = run_in(folder, sys.executable, "-m", "mypy", "--cache-dir", str(folder.parent / "mypy"))
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1500)  # some 350 tests in one
@pytest.mark.parametrize(("framework", "model"), PAIRS)
def test_rendered_tests_pass(project: Project, framework: str, model: str) -> None:
    folder = project(framework, model)
    done = run_in(folder, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout
    assert re.search(r"\d+ passed", done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "model"), PAIRS)
def test_it_trains_to_its_bar(project: Project, tmp_path: Path, framework: str, model: str) -> None:
    folder = shutil.copytree(project(framework, model), tmp_path / "proj")
    bar = re.search(r"^# Expect: (\w+) (<|>=) ([\d.]+)", (folder / "configs/default.yaml").read_text(), re.MULTILINE)
    assert bar is not None, "the recipe says what to expect"
    done = run_in(folder, "launch/local.sh", "--run.name=bar", "--run.device=cpu")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (folder / "runs/bar/metrics.jsonl").read_text().splitlines()]
    value = [row for row in rows if row["split"] == "val"][-1][bar[1]]
    print(f"{framework} {model}: {bar[1]} {value}")
    assert {"<": operator.lt, ">=": operator.ge}[bar[2]](value, float(bar[3]))


@pytest.mark.parametrize("model", MODELS)
def test_launchers_start_two_ranks(project: Project, tmp_path: Path, model: str) -> None:
    folder = shutil.copytree(project(FRAMEWORKS[0], model, "nodes"), tmp_path / "proj")
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
