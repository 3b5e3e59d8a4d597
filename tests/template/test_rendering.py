"""Every combination renders completely, is clean and valid, and its Python is the template's, byte for byte."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from matrix import (
    ALL,
    ENGINE_MODEL,
    ENTRIES,
    FRAMEWORKS,
    HARDWARE,
    MODELS,
    PROJECTS,
    QUESTIONS,
    READERS,
    ROOT,
    TEMPLATE,
)
from program import PROGRAMS, Project, run_in
from warm import run_python


def python_parts(framework: str, model: str) -> dict[str, Path]:
    """Return the part of the template that each rendered Python file must equal, by its place."""
    data, task = ENTRIES[model]["data"], ENTRIES[model]["task"]
    skeleton = TEMPLATE / "project"
    parts = {str(file.relative_to(skeleton)).replace("{{ package }}", "proj"): file for file in skeleton.rglob("*.py")}
    parts |= {f"src/proj/readers/{name}.py": TEMPLATE / f"readers/{name}.py" for name in READERS[data]}
    if "text" in READERS[data]:
        parts["src/proj/tools/text_generation.py"] = TEMPLATE / "tasks/text_generation.py"
    if "image_generation" in task:
        parts["src/proj/tools/image_grid.py"] = TEMPLATE / "tasks/image_grid.py"
    if task in ("image_classification", "text_classification"):
        parts["src/proj/tools/confusion.py"] = TEMPLATE / "tasks/confusion.py"
    chosen = QUESTIONS["frameworks"]["default"][framework]
    parts |= {f"src/proj/{name}.py": TEMPLATE / f"frameworks/{framework}/{name}.py" for name in chosen["modules"]}
    if "needs" in chosen:
        parts["src/proj/framework.py"] = TEMPLATE / "frameworks/framework.py"
        parts["src/proj/tests/test_framework.py"] = TEMPLATE / f"frameworks/{framework}/test_framework.py"
    return parts | {
        "src/proj/model.py": TEMPLATE / f"models/{model}/model.py",
        "src/proj/data.py": TEMPLATE / f"data/{data}/data.py",
        "src/proj/train.py": TEMPLATE / f"frameworks/{framework}/train.py",
        "src/proj/tools/task.py": TEMPLATE / f"tasks/{task}/task.py",
        "src/proj/tools/view.py": TEMPLATE / f"data/{data}/view.py",
        "src/proj/tests/test_data.py": TEMPLATE / f"data/{data}/test_data.py",
        "src/proj/tests/test_readers.py": TEMPLATE / f"data/{data}/test_readers.py",
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
    assert parts_on_disk("frameworks") == {
        name: {"train.py"}
        | {f"{module}.py" for module in entry["modules"]}
        | {"test_framework.py" for key in entry if key == "needs"}
        for name, entry in QUESTIONS["frameworks"]["default"].items()
    }
    assert parts_on_disk("data") == {
        name: {"data.py", "view.py", "test_data.py", "test_readers.py", "requirements"} for name in kinds
    }
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
    made_by_tests = {".git", "__pycache__", ".ruff_cache", ".cache"}
    on_disk = {file for file in folder.rglob("*") if file.is_file() and not made_by_tests & {*file.parts}}
    assert set(files) == on_disk, "the first commit contains every file"
    for file in files:
        text = file.read_text()
        assert text == "" or (text.endswith("\n") and not text.endswith("\n\n")), f"{file} ends badly"
        if ".github" in file.parts:
            text = text.replace("${{", "")
        tags = r"\{\{|\{%|\{#" if file.suffix == ".py" else r"\{\{|\{%|%\}|\{#"  # an f-string has `%}` of its own
        assert not re.search(tags, text), f"{file} has Jinja left"
        assert str(ROOT) not in text
    python = {str(file.relative_to(folder)): file.read_bytes() for file in files if file.suffix == ".py"}
    assert python == {place: part.read_bytes() for place, part in python_parts(framework, model).items()}


def test_non_python_files_are_valid(project: Project, tmp_path: Path) -> None:
    """Each tool runs once, on all files that differ."""
    found: dict[str, set[Path]] = {"yaml": set(), "workflows": set(), "github": set(), "scripts": set()}
    makefiles: set[str] = set()
    for framework, model, hardware in ALL:
        folder = project(framework, model, hardware)
        tomllib.loads((folder / "pyproject.toml").read_text())
        yamls = [*folder.rglob("*.yml"), *folder.rglob("*.yaml")]
        assert len(yamls) == (8 if "--update-workflow" in HARDWARE[hardware] else 7)
        scripts = [*(folder / "launch").iterdir()]
        assert all(script.stat().st_mode & 0o111 for script in scripts)
        for kind, files in (("yaml", yamls), ("scripts", scripts)):
            found[kind] |= {copy_once(file, tmp_path / kind) for file in files}
        workflows = {copy_once(file, tmp_path / "github") for file in folder.glob(".github/workflows/*")}
        found["workflows"] |= workflows
        found["github"].add(tmp_path / "github")
        if (makefile := (folder / "Makefile").read_text()) not in makefiles:
            makefiles.add(makefile)
            checked = ["make", "--dry-run", "setup"]
            make = subprocess.run(checked, cwd=folder, capture_output=True, text=True, check=False)
            assert make.returncode == 0, make.stderr
    rules: dict[str, object] = {
        "line-length": {"max": 160},
        "document-start": "disable",
        "truthy": {"check-keys": False},
        "indentation": {"indent-sequences": "whatever"},  # as copier writes its answers
    }
    for tool, *arguments in [
        ["yamllint", "--strict", "-d", json.dumps({"extends": "default", "rules": rules}), *map(str, found["yaml"])],
        ["check-jsonschema", "--builtin-schema", "vendor.github-workflows", *map(str, found["workflows"])],
        ["check-jsonschema", "--builtin-schema", "vendor.dependabot", str(TEMPLATE / "project/.github/dependabot.yml")],
        ["check-jsonschema", "--builtin-schema", "vendor.dependabot", str(ROOT / ".github/dependabot.yml")],
        ["check-jsonschema", "--builtin-schema", "vendor.citation-file-format", str(ROOT / "CITATION.cff")],
        ["zizmor", "--offline", "--no-progress", "--persona", "pedantic", *map(str, found["github"])],
        ["shellcheck", *map(str, found["scripts"])],
    ]:
        result = run_in(tmp_path, str(Path(sys.executable).parent / tool), *arguments)
        assert result.returncode == 0, result.stdout + result.stderr


def copy_once(file: Path, folder: Path) -> Path:
    """Copy a file to a place that equal files share."""
    place = folder / hashlib.sha256(file.read_bytes()).hexdigest()[:12] / ".github/workflows" / file.name
    if not place.exists():
        place.parent.mkdir(parents=True)
        shutil.copy(file, place)
    return place


@pytest.mark.parametrize("hardware", HARDWARE)
def test_answers_reach_the_config_and_the_launchers(project: Project, hardware: str) -> None:
    folder = project(FRAMEWORKS[0], MODELS[0], hardware)
    recipe = yaml.safe_load((folder / "configs/default.yaml").read_text())
    speed = recipe["speed"]
    expected = {"cpu": ("auto", "off"), "gpu": ("fp16", "model"), "gpus": ("bf16", "model"), "nodes": ("bf16", "model")}
    assert (speed["precision"], speed["compile"]) == expected[hardware]
    assert recipe.get("run") == (None if hardware == "cpu" else {"device": "accelerator"})
    smoke = yaml.safe_load((folder / "configs/smoke.yaml").read_text())
    assert smoke["run"] == {"device": "auto"}, "it runs on any machine"
    gpus = {"cpu": 1, "gpu": 1, "gpus": 4, "nodes": 8}[hardware]
    assert f"PROCESSES:-{gpus}" in (folder / "launch/local.sh").read_text()
    launchers = {"cpu": set(), "gpu": set(), "gpus": {"slurm.sbatch"}, "nodes": {"slurm.sbatch", "multinode.sh"}}
    assert {file.name for file in (folder / "launch").iterdir()} == {"local.sh", *launchers[hardware]}


OWN_LINES, CUDA_LINES = 365, 135  # 365: images and the largest network, diffusion with its sampler
ENGINE_LINES = {"pytorch": 1975, "lightning": 2930, "accelerate": 2490}
FAULT_LINES = 1320


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_default_run_imports_few_lines(project: Project, tmp_path: Path, framework: str) -> None:
    """It imports no technique or tool, `cuda.py` for GPUs only and `launched.py` for ranks only, which this one is.

    Config, contracts, model and data do not count, and `faults/` counts for itself.
    """
    small = ["--config=configs/default.yaml", "--config=configs/smoke.yaml", "--run.device=cpu", "--train.steps=2"]
    small += ["--optim.name=adamw", f"--run.dir={tmp_path}"]
    folder = project(framework, ENGINE_MODEL)
    result = run_python(folder, str(PROGRAMS / "list_imported.py"), *small)
    assert result.returncode == 0, result.stderr
    assert count_lines(folder / "src/proj/cuda.py") <= CUDA_LINES
    files = [Path(file) for file in result.stdout.splitlines()[-1].split()[1:]]
    names = {file.name for file in files}
    assert {"train.py", "model.py", "data.py", "loaders.py", "config.py", "checkpoint.py"} <= names
    assert [file for file in files if file.parent.name in ("techniques", "tools") and file.name[0] != "_"] == []
    own = {file for file in files if file.name in ("model.py", "data.py") or "readers" in file.parts}
    apart = ("config.py", "contracts.py", "launched.py")
    others = own | {file for file in files if file.name in apart or {"techniques", "faults"} & {*file.parts}}
    engine = sum(count_lines(file) for file in files if file not in others)
    fault_lines = sum(count_lines(file) for file in files if "faults" in file.parts)
    print(f"{framework}: {engine} lines, {fault_lines} of faults, and {sum(map(count_lines, own))} of {ENGINE_MODEL}")
    assert engine <= ENGINE_LINES[framework]
    assert fault_lines <= FAULT_LINES


@pytest.mark.parametrize("model", MODELS)
def test_model_and_data_have_few_lines(model: str) -> None:
    files = [TEMPLATE / f"models/{model}/model.py", TEMPLATE / f"data/{ENTRIES[model]['data']}/data.py"]
    assert sum(map(count_lines, files)) <= OWN_LINES


def count_lines(file: Path) -> int:
    return sum(bool(line.strip()) for line in file.read_text().splitlines())


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_readme_lists_every_file(project: Project, framework: str) -> None:
    folder = project(*((framework, MODELS[0], "nodes") if framework == FRAMEWORKS[0] else (framework, ENGINE_MODEL)))
    readme = (folder / "README.md").read_text()
    assert "| `src/proj/techniques/` |" in readme
    assert "| `src/proj/readers/` |" in readme
    files = [*folder.glob("src/proj/*.py"), *folder.glob("src/proj/tools/*.py"), *folder.glob("launch/*")]
    listed = set(re.findall(r"^\| `((?:src/proj|launch)/[\w./]+\w)` \|", readme, re.MULTILINE))
    assert listed == {str(file.relative_to(folder)) for file in files if file.name != "__init__.py"}


@pytest.mark.parametrize("model", MODELS)
def test_options_in_the_readme_are_accepted(project: Project, model: str) -> None:
    """With this model's recipe, on the GPUs that the project is for."""
    ranks = {"cpu": 1, "gpu": 1, "gpus": 4, "nodes": 16}
    rendered = [(ranks[hardware], project(framework, model, hardware)) for framework, _, hardware in of_model(model)]
    places = [f"{number}={folder}" for number, folder in rendered]
    result = run_python(rendered[0][1], str(PROGRAMS / "check_readme.py"), *places)
    assert result.returncode == 0, result.stderr
    assert all(re.fullmatch(r"[789] lines", line) for line in result.stdout.splitlines()), result.stdout
    for number, folder in rendered:
        assert ("--dist.strategy fsdp" in (folder / "README.md").read_text()) == (number > 1)


def of_model(model: str) -> list[tuple[str, str, str]]:
    return [combination for combination in ALL if combination[1] == model]


@pytest.mark.slow
def test_python_is_formatted_and_typed(project: Project, tmp_path: Path) -> None:
    """That of this repository, as `make check` does, and of all projects.

    These take the same place in turn, so that mypy checks a module again only where one has changed, and start from the
    cache of the repository, as reading torch takes half a minute.
    """
    result = run_in(ROOT, sys.executable, "-m", "mypy")
    assert result.returncode == 0, result.stdout
    folders = [project(framework, model) for framework, model in PROJECTS]
    for command in (["ruff", "format", "--check", "--no-cache"], ["ruff", "check", "--no-cache"]):
        result = run_in(tmp_path, sys.executable, "-m", *command, *map(str, folders))
        assert result.returncode == 0, result.stdout + result.stderr
    place, cache = tmp_path / "proj", shutil.copytree(ROOT / ".mypy_cache", tmp_path / "mypy")
    for folder in folders:
        shutil.copytree(folder, place, ignore=shutil.ignore_patterns(".git", "__pycache__"))
        result = run_in(place, sys.executable, "-m", "mypy", "--cache-dir", str(cache))
        assert result.returncode == 0, result.stdout
        shutil.rmtree(place)
