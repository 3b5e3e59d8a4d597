"""The pages that a new user follows are true: their commands run, and print what the pages show."""

import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matrix import EVERY, ROOT
from pages import Shell, make_environment
from updating import commit, git

OTHER_TESTS = ("make test", "make check")
"""Commands that the tests of projects run, for all models."""


@pytest.fixture
def shell(environment: dict[str, str], tmp_path: Path) -> Shell:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "fastproj").write_text(f'#!/bin/sh\nexec {sys.executable} -m fastproj "$@"\n')
    (programs / "fastproj").chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return Shell(
        tmp_path,
        environment | {"PATH": path},
        (*OTHER_TESTS, "make setup UV="),
    )


@pytest.mark.slow
def test_first_run(shell: Shell) -> None:
    page = "start/first-run.md"
    shell.follow(page, "## 1. Create the project")
    shell.follow(page, "## 2. Install its requirements")
    shell.follow(page, "## 3. Train")
    shell.follow(page, "## 4. Look at the result")
    if EVERY:
        shell.follow(page, "## 5. Change an option")
        assert (shell.folder / "runs/second").is_dir()


@pytest.mark.test_all
def test_your_data(shell: Shell) -> None:
    shell.follow("start/first-run.md", "## 1. Create the project")
    shell.follow("start/first-run.md", "## 2. Install its requirements")
    shell.follow("start/your-data.md", "## Try it with images")
    shell.follow("start/your-data.md", "### A test split")


@pytest.mark.test_all
def test_your_tables_and_series(shell: Shell) -> None:
    start = shell.folder
    draws = np.random.default_rng(0)
    number = draws.normal(size=400)
    plan = draws.choice(["basic", "pro"], 400)
    for model, heading in (("mlp", "### Tables"), ("lstm", "### Time series")):
        shell.folder = start
        shell.run(f"fastproj new {model} --model {model} --yes")
        shell.run(f"cd {model}")
        make_environment(shell.folder)
        customers = {
            "id": range(400),
            "age": number,
            "plan": plan,
            "churned": number > 0,
        }
        pd.DataFrame(customers).to_csv(shell.folder / "customers.csv", index=False)
        houses = {"size": number, "plan": plan, "price": 3 * number + 1}
        pd.DataFrame(houses).to_parquet(shell.folder / "houses.parquet")
        hours = pd.date_range("2030-01-01", periods=2000, freq="h")
        waves = np.sin(np.arange(2000) / 24)
        series = {"date": hours, "load": waves, "wind": waves**2}
        pd.DataFrame(series).to_csv(shell.folder / "load.csv", index=False)
        shell.follow("start/your-data.md", heading)


@pytest.mark.slow
def test_your_model(shell: Shell) -> None:
    files = ("src/mine/data.py", "src/mine/model.py", "configs/default.yaml")
    shell.follow("start/your-model.md", "## Try it", *files)
    shell.run(".venv/bin/ruff check .")
    if EVERY:
        shell.run(".venv/bin/python -m pytest -q -p no:cacheprovider src/mine/tests")


@pytest.fixture
def fork(tmp_path: Path) -> Path:
    """The template as a repository with a release."""
    folder = tmp_path / "fork"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "template", folder / "template", ignore=ignored)
    shutil.copy(ROOT / "copier.yml", folder)
    git(folder, "init", "-q")
    commit(folder)
    git(folder, "tag", "v1.0.0")
    return folder


def test_components(shell: Shell) -> None:
    shell.run("fastproj new myproj --yes")
    shell.run("cd myproj")
    shell.follow("components.md", "# Components")


def test_update(shell: Shell, fork: Path) -> None:
    shell.run(f"fastproj new myproj --yes --template {fork}")
    shell.run("cd myproj")
    readme = shell.folder / "README.md"
    readme.write_text(f"{readme.read_text()}\nOur notes.\n")
    commit(shell.folder)
    release(fork, "v1.1.0")
    shell.statuses["fastproj status"] = 3
    shell.follow("updating.md", "## Update")
    assert (shell.folder / "src/myproj/train.py").read_text().endswith("# v1.1.0\n")
    assert "Our notes." in readme.read_text()
    assert git(shell.folder, "status", "--porcelain") == ""
    if EVERY:
        follow_a_conflict(shell, fork)


def follow_a_conflict(shell: Shell, fork: Path) -> None:
    """Edit the line that the next release changes too, and follow what the page says then."""
    ours = shell.folder / "src/myproj/train.py"
    ours.write_text(ours.read_text().replace("# v1.1.0", "# ours"))
    commit(shell.folder)
    release(fork, "v1.2.0")
    shell.statuses["fastproj update"] = 4
    shell.run("fastproj update")
    assert "<<<<<<< HEAD\n# ours\n" in ours.read_text()
    shell.skipped += ("git cherry-pick --continue",)
    shell.follow("updating.md", "## Conflicts")
    assert ours.read_text().endswith("# ours\n")


def release(fork: Path, version: str) -> None:
    """Make a release of the template, whose train.py ends with its version."""
    file = fork / "template/frameworks/pytorch/train.py"
    file.write_text(
        re.sub(
            r"(# v.*\n)?\Z",
            f"# {version}\n",
            file.read_text(),
            count=1,
        )
    )
    commit(fork)
    git(fork, "tag", version)
