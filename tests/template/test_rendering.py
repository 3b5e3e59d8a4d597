"""Every combination renders completely and cleanly, with the template's Python byte for byte."""

import ast
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from covering import covering
from matrix import (
    ALL,
    CLASSES,
    COMPONENTS,
    COVER,
    ENTRIES,
    EVERY,
    FRAMEWORKS,
    HARDWARE,
    MODELS,
    MODULES,
    PROJECTS,
    QUESTIONS,
    ROOT,
    TEMPLATE,
    module_of,
    offered,
)
from program import Fastproj, Project, run_in

ABOUT_FRAMEWORKS = QUESTIONS["frameworks"]["default"]
KINDS = QUESTIONS["kinds"]["default"]
FRAMEWORK_FILES = {name: entry["files"] for name, entry in ABOUT_FRAMEWORKS.items()}
SEVERAL = {name: it["several"] for name, it in ABOUT_FRAMEWORKS.items() if "several" in it}
"""The module of a framework that calls several components."""
REGISTRY = "src/proj/components/__init__.py"


def python_parts(
    framework: str,
    model: str,
    modules: list[str],
) -> dict[str, Path]:
    """Return the part of the template that each rendered Python file must equal, by its place."""
    data = ENTRIES[model]["data"]
    skeleton = TEMPLATE / "project"
    parts = {
        str(file.relative_to(skeleton)).replace("{{ package }}", "proj"): file
        for file in skeleton.rglob("*.py")
    }
    for origin, names in FRAMEWORK_FILES[framework].items():
        parts |= {
            f"src/proj/{name}.py": TEMPLATE / f"frameworks/{origin}/{name}.py" for name in names
        }
    if framework in SEVERAL and set(CLASSES) & set(modules):
        several = SEVERAL[framework]
        parts[f"src/proj/{several}.py"] = TEMPLATE / f"frameworks/{framework}/{several}.py"
    for name in modules:
        folder = TEMPLATE / "components" / name
        parts[f"src/proj/components/{module_of(name)}.py"] = folder / "component.py"
        parts[f"src/proj/tests/test_{module_of(name)}.py"] = folder / "test_component.py"
        if "by_data" in COMPONENTS[name]:
            of_data = TEMPLATE / f"data/{data}/{name}.py"
            parts[f"src/proj/components/{module_of(name)}_data.py"] = of_data
    for name in KINDS[data]:
        parts[f"src/proj/{name}.py"] = TEMPLATE / f"data/shared/{name}.py"
    return parts | {
        "src/proj/model.py": TEMPLATE / f"models/{model}/model.py",
        "src/proj/data.py": TEMPLATE / f"data/{data}/data.py",
        f"src/proj/tests/test_{model}.py": TEMPLATE / f"models/{model}/test_model.py",
        "src/proj/tests/test_data_files.py": TEMPLATE / f"data/{data}/test_data.py",
    }


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("model", MODELS)
def test_each_module_that_a_project_imports_is_part_of_it(framework: str, model: str) -> None:
    parts = python_parts(framework, model, [])
    known = {str(Path(place).parent) for place in parts} | {"src/proj/components"}
    known |= functions_of(parts["src/proj/tests/__init__.py"], "src/proj/tests")
    missing = []
    for place, part in parts.items():
        for node in ast.walk(ast.parse(part.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                folder = Path(place).parents[node.level - 1]
                names = [node.module] if node.module else [alias.name for alias in node.names]
                wanted = {str(folder / name.split(".")[0]) for name in names}
                missing += [
                    f"{place}: {name}"
                    for name in wanted
                    if f"{name}.py" not in parts and name not in known
                ]
    assert missing == []


def functions_of(package: Path, place: str) -> set[str]:
    """Return the functions of an `__init__.py`, by the place from which a module imports them."""
    statements = ast.parse(package.read_text()).body
    return {f"{place}/{item.name}" for item in statements if isinstance(item, ast.FunctionDef)}


def parts_on_disk(folder: str) -> dict[str, set[str]]:
    """Return each part of a kind with the names of its files."""
    parts = (part for part in (TEMPLATE / folder).iterdir() if part.is_dir())
    found = {}
    for part in parts:
        found[part.name] = {file.name for file in part.iterdir() if file.is_file()}
    return found


def test_parts_of_frameworks_match_the_choices() -> None:
    listed: list[tuple[str, str]] = []
    for of_framework in FRAMEWORK_FILES.values():
        for origin, names in of_framework.items():
            listed += ((origin, name) for name in names)
    listed += SEVERAL.items()
    folders = [TEMPLATE / "frameworks" / name for name in FRAMEWORKS]
    on_disk = set()
    for folder in folders:
        names = (str(file.relative_to(folder).with_suffix("")) for file in folder.rglob("*.py"))
        on_disk |= {(folder.name, name) for name in names}
    assert on_disk == set(listed)


def test_parts_of_models_and_data_match_the_choices() -> None:
    assert parts_on_disk("models") == {
        name: {"model.py", "default.yaml", "test_model.py"} for name in MODELS
    }
    of_components = {f"{name}.py" for name, entry in COMPONENTS.items() if "by_data" in entry}
    assert {entry["data"] for entry in ENTRIES.values()} == set(KINDS)
    shared = {f"{name}.py" for name in chain.from_iterable(KINDS.values())}
    assert parts_on_disk("data") == {
        "shared": shared,
        **{name: {"data.py", "test_data.py", "requirements", *of_components} for name in KINDS},
    }


def test_parts_of_components_match_the_choices() -> None:
    for name, files in parts_on_disk("components").items():
        entry = COMPONENTS[name]
        keys = entry.keys() & {"launch", "workflow", "config", "file"}
        own = {Path(entry[key]).name for key in keys}
        assert files == (own or {"component.py", "test_component.py"})
    assert parts_on_disk("components").keys() == COMPONENTS.keys()


def test_no_jinja_in_python() -> None:
    tagged = [
        file for file in TEMPLATE.rglob("*.py") if re.search(r"\{\{|\{%|\{#", file.read_text())
    ]
    assert tagged == []
    wrapped = [
        file for file in TEMPLATE.rglob("*.py.jinja") if "components" not in file.parent.name
    ]
    assert wrapped
    for file in wrapped:
        assert re.fullmatch(r"\{% include '[^%]*' ~ [^%]* -%\}\n", file.read_text()), file


def check_text(file: Path) -> None:
    text = file.read_text()
    assert text.rstrip("\n") + "\n" == (text or "\n"), f"{file} ends badly"
    if ".github" in file.parts:
        text = text.replace("${{", "")
    # an f-string has `%}` of its own
    tags = r"\{\{|\{%|\{#" if file.suffix == ".py" else r"\{\{|\{%|%\}|\{#"
    assert not re.search(tags, text), f"{file} has Jinja left"
    assert str(ROOT) not in text


@pytest.mark.parametrize(("framework", "model", "hardware"), ALL)
def test_rendering_is_complete_and_clean(
    project: Project, framework: str, model: str, hardware: str
) -> None:
    folder = project(framework, model, hardware)
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=folder, capture_output=True, text=True, check=True
    ).stdout
    files = [folder / name for name in tracked.split("\0") if name]
    made_by_tests = {".git", "__pycache__", ".ruff_cache", ".cache"}
    on_disk = {
        file for file in folder.rglob("*") if file.is_file() and not made_by_tests & {*file.parts}
    }
    assert set(files) == on_disk, "the first commit contains every file"
    for file in files:
        check_text(file)
    python = {
        str(file.relative_to(folder)): file.read_bytes() for file in files if file.suffix == ".py"
    }
    modules = offered(framework, MODULES) if hardware == "nodes" else []
    registry = python.pop(REGISTRY, b"").decode()
    assert python == {
        place: part.read_bytes() for place, part in python_parts(framework, model, modules).items()
    }
    if framework == FRAMEWORKS[0]:
        assert fields_of_config(registry) == [
            module_of(name) for name in CLASSES if name in modules
        ]
    else:
        assert ast.unparse(ast.parse(registry)).count("\n") == 0, "a docstring, or no file"
        assert bool(registry) == bool(modules)
    if hardware == "cpu":
        has_two_data_modules = model in ("gpt", "lstm")
        assert len(files) <= 45 + has_two_data_modules


def fields_of_config(registry: str) -> list[str]:
    """Return the sections that a registry adds to the config, in their order."""
    config = next(node for node in ast.parse(registry).body if isinstance(node, ast.ClassDef))
    fields = (node.target for node in config.body if isinstance(node, ast.AnnAssign))
    return [field.id for field in fields if isinstance(field, ast.Name)]


@pytest.mark.parametrize(
    "framework", [name for name in FRAMEWORKS if FRAMEWORKS[0] in FRAMEWORK_FILES[name]]
)
def test_readme_is_short_and_names_every_module(project: Project, framework: str) -> None:
    """A framework that shares modules of the core lists them all."""
    folder = project(framework, MODELS[0])
    readme = (folder / "README.md").read_text()
    assert len(readme.splitlines()) <= 100
    modules = {file.name for file in (folder / "src/proj").glob("*.py")} - {"__init__.py"}
    assert {name for name in modules if f"  {name}  " not in readme} == set()


@pytest.mark.slow
def test_non_python_files_are_valid(project: Project, tmp_path: Path) -> None:
    """Each tool runs once, on all files that differ."""
    found: dict[str, set[Path]] = {
        "yaml": set(),
        "workflows": set(),
        "github": set(),
        "scripts": set(),
    }
    for file in (ROOT / ".github/workflows").iterdir():
        found["workflows"].add(copy_once(file, tmp_path / "github"))
    makefiles: set[str] = set()
    for framework, model, hardware in ALL:
        folder = project(framework, model, hardware)
        tomllib.loads((folder / "pyproject.toml").read_text())
        yamls = [*folder.rglob("*.yml"), *folder.rglob("*.yaml")]
        has_config = "config" in ABOUT_FRAMEWORKS[framework]
        of_components = sum(is_yaml(COMPONENTS[name]) for name in offered(framework))
        assert (
            len(yamls)
            == {"cpu": 0, "gpu": 1, "gpus": 0, "nodes": of_components}[hardware] + 6 + has_config
        )
        scripts = [
            file for file in (folder / "launch").iterdir() if file.suffix in (".sh", ".sbatch")
        ]
        assert all(script.stat().st_mode & 0o111 for script in scripts)
        for kind, files in (("yaml", yamls), ("scripts", scripts)):
            found[kind] |= {copy_once(file, tmp_path / kind) for file in files}
        found["workflows"] |= {
            copy_once(file, tmp_path / "github") for file in folder.glob(".github/workflows/*")
        }
        found["github"].add(tmp_path / "github")
        if (makefile := (folder / "Makefile").read_text()) not in makefiles:
            makefiles.add(makefile)
            checked = ["make", "--dry-run", "setup"]
            make = subprocess.run(
                checked,
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
            )
            assert make.returncode == 0, make.stderr
    rules: dict[str, object] = {
        "line-length": {"max": 160},
        "document-start": "disable",
        "truthy": {"check-keys": False},
        "indentation": {"indent-sequences": "whatever"},  # as copier writes its answers
    }
    for tool, *arguments in [
        [
            "yamllint",
            "--strict",
            "-d",
            json.dumps({"extends": "default", "rules": rules}),
            *map(str, found["yaml"]),
        ],
        [
            "check-jsonschema",
            "--builtin-schema",
            "vendor.github-workflows",
            *map(str, found["workflows"]),
        ],
        [
            "check-jsonschema",
            "--builtin-schema",
            "vendor.dependabot",
            str(TEMPLATE / "project/.github/dependabot.yml"),
        ],
        [
            "check-jsonschema",
            "--builtin-schema",
            "vendor.dependabot",
            str(ROOT / ".github/dependabot.yml"),
        ],
        [
            "check-jsonschema",
            "--builtin-schema",
            "vendor.citation-file-format",
            str(ROOT / "CITATION.cff"),
        ],
        [
            "zizmor",
            "--offline",
            "--no-progress",
            "--persona",
            "pedantic",
            *map(str, found["github"]),
        ],
        ["shellcheck", *map(str, found["scripts"])],
    ]:
        run_in(
            tmp_path,
            str(Path(sys.executable).parent / tool),
            *arguments,
        )


def is_yaml(component: dict[str, Any]) -> bool:
    """Whether a component is a YAML file."""
    return (
        "workflow" in component
        or "config" in component
        or component.get("file", "").endswith((".yml", ".yaml"))
    )


def copy_once(file: Path, folder: Path) -> Path:
    """Copy a file to a place that equal files share."""
    place = (
        folder
        / hashlib.sha256(file.read_bytes()).hexdigest()[:12]
        / ".github/workflows"
        / file.name
    )
    if not place.exists():
        place.parent.mkdir(parents=True)
        shutil.copy(file, place)
    return place


@pytest.mark.parametrize("hardware", HARDWARE)
def test_answers_reach_the_config_and_the_launchers(project: Project, hardware: str) -> None:
    folder = project(FRAMEWORKS[0], MODELS[0], hardware)
    recipe = yaml.safe_load((folder / "configs/default.yaml").read_text())
    speed = {"precision": "auto", "compile": "off"} | recipe.get("speed", {})
    expected = {
        "cpu": ("auto", "off"),
        "gpu": ("fp16", "model"),
        "gpus": ("bf16", "model"),
        "nodes": ("bf16", "model"),
    }
    assert (speed["precision"], speed["compile"]) == expected[hardware]
    assert recipe.get("run") == (None if hardware == "cpu" else {"device": "accelerator"})
    smoke = yaml.safe_load((folder / "configs/smoke.yaml").read_text())
    assert smoke["run"] == {"device": "auto"}, "it runs on any machine"
    gpus = {"cpu": 1, "gpu": 1, "gpus": 4, "nodes": 8}[hardware]
    assert f"PROCESSES:-{gpus}" in (folder / "launch/local.sh").read_text()
    every = {entry["launch"] for entry in COMPONENTS.values() if "launch" in entry}
    every |= {
        Path(it["file"]).name
        for it in COMPONENTS.values()
        if it.get("file", "").startswith("launch/")
    }
    launchers = {
        "cpu": set(),
        "gpu": set(),
        "gpus": {"slurm.sbatch"},
        "nodes": every,
    }
    assert {file.name for file in (folder / "launch").iterdir()} == {
        "local.sh",
        *launchers[hardware],
    }


@pytest.mark.parametrize(
    "chosen",
    [[], ["ema"], MODULES],
    ids=["none", "one", "all"],
)
def test_registry_is_formatted(
    chosen: list[str],
    fastproj: Fastproj,
    tmp_path: Path,
) -> None:
    components = ["--components", ",".join(chosen) or "none"]
    fastproj(
        "new", "proj", "--yes", "--no-git", "--model=mlp", *components, "--output", str(tmp_path)
    )
    registry = tmp_path / "proj" / REGISTRY
    assert fields_of_config(registry.read_text()) == [
        module_of(name) for name in chosen if name in CLASSES
    ]
    for command in (["ruff", "format", "--check"], ["ruff", "check"]):
        run_in(
            tmp_path / "proj",
            sys.executable,
            "-m",
            *command,
            "--no-cache",
            str(registry),
        )


@pytest.mark.slow
def test_python_is_formatted_and_typed(
    project: Project, fastproj: Fastproj, tmp_path: Path
) -> None:
    """All packages lie side by side, and mypy has the settings and the cache of `make check`.

    With the same settings, it reads no package again. Those of projects are less strict.
    """
    for framework in FRAMEWORKS:
        for name, components in packages(framework).items():
            add_package(fastproj, tmp_path, framework, name, components)
        for model in [model for name, model in PROJECTS if name == framework]:
            whole_too = EVERY or (framework, model) == COVER[0]
            package = project(framework, model) / "src/proj"
            copy_modules(package, tmp_path / "proj/src" / f"{framework}_{model}", whole_too)
    folder = tmp_path / "proj"
    cache = tmp_path / "cache"
    if (ROOT / ".mypy_cache").exists():
        shutil.copytree(ROOT / ".mypy_cache", cache)
    settings = tmp_path / "pyproject.toml"
    rendered = [f"{package.name}.*" for package in (folder / "src").iterdir()]
    added = ADDED.format(rendered=json.dumps(rendered), untyped=json.dumps(untyped()))
    settings.write_text((ROOT / "pyproject.toml").read_text() + added)
    for command in (
        ["ruff", "format", "--check"],
        ["ruff", "check"],
        ["ruff", "check", "--config", str(ROOT / "pyproject.toml")],
        ["mypy", "--config-file", str(settings), "--cache-dir", str(cache), "src"],
    ):
        run_in(folder, sys.executable, "-m", *command)


@pytest.mark.slow
@pytest.mark.test_all
def test_types_are_right_with_the_settings_of_projects(fastproj: Fastproj, tmp_path: Path) -> None:
    for framework in FRAMEWORKS:
        folder = tmp_path / framework
        add_package(fastproj, folder, framework, "proj", offered(framework, MODULES))
        cache = str(tmp_path / "cache")
        run_in(folder / "proj", sys.executable, "-m", "mypy", "--cache-dir", cache)


def packages(framework: str) -> dict[str, list[str]]:
    """Return the packages that are rendered, each with its components."""
    first = framework == FRAMEWORKS[0]
    found = {"proj" if first else f"all_{framework}": offered(framework, MODULES)}
    if first and EVERY:
        sets = covering(COMPONENTS, MODULES)[1:]
        found |= {f"set{number}": names for number, names in enumerate(sets)}
    return found


def add_package(
    fastproj: Fastproj, folder: Path, framework: str, name: str, components: list[str]
) -> None:
    """Render a package, and move it into the first one's project."""
    answers = ["--framework", framework, "--components", ",".join(components)]
    fastproj(
        "new",
        name,
        *answers,
        "--yes",
        "--no-git",
        "--output",
        str(folder),
    )
    if name != "proj":
        shutil.move(folder / name / "src" / name, folder / "proj/src")


def copy_modules(package: Path, target: Path, whole: bool) -> None:
    """Copy a package, or its model and data, their tests, and what they import."""
    if whole:
        shutil.copytree(package, target)
        return
    shared = {"__init__", "support", "test_model", "test_train"}
    tests = [file.name for file in (package / "tests").iterdir() if file.stem not in shared]
    rest = ["__init__.py", "model.py", "data.py", "tests/__init__.py"]
    rest += [f"tests/{name}" for name in tests if name.startswith("test_")]
    while rest:
        name = rest.pop()
        if not (target / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(package / name, target / name)
            imported = re.findall(
                r"^ *from \.+(\w+) import",
                (target / name).read_text(),
                re.M,
            )
            rest += [f"{module}.py" for module in imported]


ADDED = """
[[tool.mypy.overrides]]
module = {rendered}
disable_error_code = ["import-not-found", "import-untyped"]  # many packages have no types

[[tool.mypy.overrides]]
module = {untyped}
follow_imports = "skip"
"""


def untyped() -> list[str]:
    """Return the packages that mypy does not read in projects."""
    entries = [*ABOUT_FRAMEWORKS.values(), *COMPONENTS.values()]
    return [*chain.from_iterable(entry.get("untyped", []) for entry in entries)]
