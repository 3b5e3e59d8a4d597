"""What a framework does not support is refused at the start and documented."""

import re
from pathlib import Path

import pytest
import yaml
from matrix import ENGINE_MODEL, FRAMEWORKS, QUESTIONS, ROOT
from program import PROGRAMS, Project
from warm import run_python

OTHERS = FRAMEWORKS[1:]

WITH_PACKAGE = [name for name in FRAMEWORKS if "needs" in QUESTIONS["frameworks"]["default"][name]]


def test_accelerate_launch_options_outside_the_config_are_refused(project: Project, tmp_path: Path) -> None:
    command = ["-m", "proj.train", "--run.device=cpu", f"--run.dir={tmp_path}/runs"]
    result = run_python(project("accelerate", ENGINE_MODEL), *command, ACCELERATE_USE_DEEPSPEED="true")
    assert result.returncode == 1
    assert result.stderr.startswith(
        "error: accelerate launch asks for DeepSpeed: launch without it, and use dist.strategy=fsdp,"
    )
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("framework", WITH_PACKAGE)
@pytest.mark.parametrize(("there", "message"), [("none", "is not installed"), ("0.9.1", "0.9.1 is too old")])
def test_missing_or_old_framework_error_names_the_pip_command(
    project: Project, framework: str, there: str, message: str
) -> None:
    needs = QUESTIONS["frameworks"]["default"][framework]["needs"]
    result = run_python(project(framework, ENGINE_MODEL), str(PROGRAMS / "without_package.py"), framework, there)
    assert result.returncode == 1
    least = needs.partition(",")[0]
    assert result.stderr == f"error: {framework} {message}: pip install '{least}'\n"


@pytest.mark.parametrize("framework", WITH_PACKAGE)
def test_minimum_framework_version_is_consistent(framework: str) -> None:
    needs = QUESTIONS["frameworks"]["default"][framework]["needs"]
    checked = re.search(
        r'require\("(\w+)", "([\d.]+)"\)', (ROOT / f"template/frameworks/{framework}/train.py").read_text()
    )
    assert checked is not None
    assert needs.startswith(f"{checked[1]}>={checked[2]},")


def _unsupported(framework: str) -> dict[str, str]:
    text = (ROOT / f"template/frameworks/{framework}/train.py").read_text()
    tables = re.findall(r"^UNSUPPORTED\w* = (\{.*?\})$", text, re.MULTILINE | re.DOTALL)
    return {key: why for table in tables for key, why in yaml.safe_load(table.replace(",\n}", "}")).items()}


def documented() -> list[list[str]]:
    """The rows of the page's table: key, and a cell for each framework."""
    page = (ROOT / "docs/frameworks.md").read_text()
    _, head, rest = page.partition(f"| key | {' | '.join(FRAMEWORKS)} |")
    assert head
    rows = rest.partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in rows if line.startswith("| `")]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_documentation_lists_unsupported_keys(framework: str) -> None:
    column = 1 + FRAMEWORKS.index(framework)
    keys = {row[0].strip("`") for row in documented() if "not supported" in row[column]}
    assert keys == {what.partition("=")[0] for what in _unsupported(framework)}


def test_documentation_lists_every_key(project: Project) -> None:
    result = run_python(project(FRAMEWORKS[0], ENGINE_MODEL), "-m", "proj.train", "--print_config")
    assert result.returncode == 0, result.stderr
    config = yaml.safe_load(result.stdout)
    keys = {f"{name}.{key}" for name, section in config.items() if name not in ("data", "model") for key in section}
    assert {row[0].strip("`") for row in documented()} == keys | {"model.*", "data.*", "trainer.*"}


@pytest.mark.parametrize("framework", OTHERS)
def test_unsupported_key_is_refused_at_start(project: Project, tmp_path: Path, framework: str) -> None:
    values = {"speed.step_graph": "true", "debug.sync": "warn"}
    refused = [(*what.partition("=")[::2], why) for what, why in _unsupported(framework).items()]
    assert refused
    given = [(key, value or values[key], why) for key, value, why in refused]
    options = [f"--{key}={value}" for key, value, _ in given]
    program = [str(PROGRAMS / "train_each.py"), f"--run.dir={tmp_path}/runs"]
    result = run_python(project(framework, ENGINE_MODEL), *program, *options)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["1"] * len(options)
    assert result.stderr.splitlines() == [f"error: {key} is {value}: {why}" for key, value, why in given]
    assert not (tmp_path / "runs").exists()
