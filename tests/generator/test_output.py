"""The program where its output cannot be written, on a full disk, and on Windows."""

import resource
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest
from program import run_on_full_device
from updating import MakeProject, git, read_answers

FULL = "fastproj: cannot write the output (No space left on device): check where stdout goes\n"


@pytest.mark.parametrize("command", ["--help", "status", "update", "new"])
def test_output_that_cannot_be_written(
    command: str, make_project: MakeProject, environment: dict[str, str], tmp_path: Path
) -> None:
    folder = make_project()
    template = str(read_answers(folder)["_src_path"])
    new = ["other", "--yes", "--template", template, "--output", str(tmp_path)]
    result = run_on_full_device(
        folder,
        environment,
        command,
        *(new if command == "new" else []),
    )
    assert (result.returncode, result.stderr) == (int(command in ("--help", "status")), FULL), (
        "it is done"
    )
    assert ("A  docs/new.md" in git(folder, "status", "--porcelain")) == (command == "update")
    assert (tmp_path / "other").exists() == (command == "new")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_closed_stdout_is_no_traceback(
    make_project: MakeProject, environment: dict[str, str]
) -> None:
    command = ["-c", f"{sys.executable} -m fastproj status >&-"]
    result = pexpect.spawn(
        "sh", command, cwd=str(make_project()), env=environment, encoding="utf-8", timeout=60
    )
    result.expect(pexpect.EOF)
    result.close()
    assert (result.exitstatus, "Traceback" in (result.before or "")) == (3, False)


@pytest.mark.parametrize("limit", [0, 5_000])
def test_full_disk_leaves_no_files(
    limit: int,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    (tmp_path / "out").mkdir()
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "fastproj",
            "new",
            "proj",
            "--yes",
            "--output",
            str(tmp_path / "out"),
        ],
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


def test_native_windows_is_refused() -> None:
    program = "import sys; sys.platform = 'win32'; from fastproj.__main__ import main; main()"
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            program,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.startswith("fastproj: on Windows, fastproj runs in WSL2 only")
    assert result.stderr.count("\n") == 1
