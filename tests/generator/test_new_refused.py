"""`fastproj new` refuses, in one line and without leaving anything behind, what it cannot do."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from program import Fastproj, run_on_full_device

WRONG_USAGE = [
    (["--gpus", "-1"], "gpus"),
    (["--gpus", "65"], "from 0 to 64"),
    (["--gpus", "two"], "integer"),
    (["--nodes", "0"], "from 1 to 10000"),
    (["--tensor-cores", "fp8", "--gpus", "0"], "fp8 requires a GPU"),
    (["--tensor-cores", "int4", "--gpus", "1"], "int4"),
    (["--framework", "tensorflow"], "tensorflow"),
    (["--model", "perceptron"], "perceptron"),
    (["--model", ""], "model"),
    (["--model", "../models/resnet"], "../models/resnet"),
    (["--components", "kubernetes"], "kubernetes"),
    (["--licence", "GPL"], "GPL"),
    (["--author", ""], "author"),
    (["--author", "a\nb"], "author"),
    (["--author", "x" * 101], "author"),
    (["--gpu", "1"], "--gpu"),
    (["--nonsense"], "--nonsense"),
    (["extra"], "extra"),
    (["--data", "nonsense=1"], "has no such question"),
    (["--data", "gpus"], "KEY=VALUE"),
    (["--data", "=1"], "has no such question"),
    (["--data", "precision=fp8"], "has no such question"),
    (["--data", "project_name=../../x"], "has no such question"),
    (["--data", "_src_path=x"], "has no such question"),
    (["--data", "gpus=99"], "from 0 to 64"),
    (["--data", "gpus=x"], "integer"),
    (["--data", "gpus=1", "--data", "gpus=2"], "given twice"),
    (["--gpus", "1", "--data", "gpus=2"], "given twice"),
]
OTHER_ERRORS = [
    (["--template", ""], "is not on this machine"),
    (["--template", "~nosuchuser/x"], "is not on this machine"),
    (["--template", "a" * 300], "is not on this machine"),
    (["--template", "/no/such/template"], "is not on this machine"),
    (["--template", "https://127.0.0.1:9/x.git"], "could not read the template"),
    (["--output", "/no/such/folder"], "is not a folder"),
]


BAD = [*((2, *case) for case in WRONG_USAGE), *((1, *case) for case in OTHER_ERRORS)]


@pytest.mark.parametrize(("status", "options", "message"), BAD, ids=lambda value: ascii(value)[:40])
def test_bad_option_is_a_one_line_error(
    status: int, options: list[str], message: str, fastproj: Fastproj, tmp_path: Path
) -> None:
    result = fastproj("new", "proj", "--yes", *options, cwd=tmp_path)
    assert result.returncode == status, result.stdout
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_no_terminal_requires_yes(fastproj: Fastproj, tmp_path: Path) -> None:
    result = fastproj("new", "proj", cwd=tmp_path)
    assert result.returncode == 2
    assert "pass --yes" in result.stderr
    assert list(tmp_path.iterdir()) == []


def make_file(target: Path) -> None:
    target.write_text("mine")


def make_folder(target: Path) -> None:
    target.mkdir()


def make_full_folder(target: Path) -> None:
    target.mkdir()
    (target / "mine").write_text("mine")


def make_link(target: Path) -> None:
    (target.parent / "elsewhere").mkdir()
    target.symlink_to("elsewhere")


def make_dangling_link(target: Path) -> None:
    target.symlink_to("nowhere")


@pytest.mark.parametrize("make", [make_file, make_folder, make_full_folder, make_link, make_dangling_link])
def test_existing_target_is_never_changed(make: Callable[[Path], None], fastproj: Fastproj, tmp_path: Path) -> None:
    make(tmp_path / "proj")
    before = sorted((str(path), path.is_symlink()) for path in tmp_path.rglob("*"))
    result = fastproj("new", "proj", "--yes", cwd=tmp_path)
    assert result.returncode == 1
    assert "exists already" in result.stderr
    assert sorted((str(path), path.is_symlink()) for path in tmp_path.rglob("*")) == before


def test_unwritable_folder_is_a_one_line_error(fastproj: Fastproj, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o555)
    closed = "/proc" if os.geteuid() == 0 else str(tmp_path / "closed")  # root may write in any ordinary folder
    result = fastproj("new", "proj", "--yes", "--output", closed)
    assert result.returncode == 1
    assert "cannot" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("limit", [0, 500, 5_000])
def test_full_disk_leaves_no_files(limit: int, environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    result = subprocess.run(
        [sys.executable, "-m", "fastproj", "new", "proj", "--yes", "--output", str(tmp_path / "out")],
        env=environment | {"PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1, result.stdout
    assert result.stderr.count("\n") == 1
    assert list((tmp_path / "out").iterdir()) == []


def test_missing_git_is_a_one_line_error(fastproj: Fastproj, tmp_path: Path) -> None:
    result = fastproj("new", "proj", "--yes", cwd=tmp_path, PATH=str(tmp_path))
    assert result.returncode == 1
    assert "install git" in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


OLD_GIT = "#!/bin/sh\necho git version 2.17.6\n"


@pytest.mark.parametrize(
    "script", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\necho nonsense\n", "\x7fELF", "#!/no/shell\n", OLD_GIT]
)
def test_broken_git_is_a_one_line_error(script: str, fastproj: Fastproj, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").write_text(script)
    (tmp_path / "bin/git").chmod(0o755)
    (tmp_path / "out").mkdir()
    result = fastproj("new", "proj", "--yes", cwd=tmp_path / "out", PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    assert result.returncode == 1
    assert "git" in result.stderr
    assert result.stderr.count("\n") == 1
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("arguments", [["detect"], ["--version"], ["--help"]])
def test_full_output_device_is_a_one_line_error(
    arguments: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    result = run_on_full_device(tmp_path, environment, *arguments)
    assert result.returncode == 1
    assert "cannot write the output" in result.stderr
    assert result.stderr.count("\n") == 1
