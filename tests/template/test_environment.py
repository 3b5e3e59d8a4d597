"""What uv and pip install.

The build of torch that the answers ask for, and with uv no release of the last week.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from matrix import FRAMEWORKS, MODELS, ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from program import Project, run_in

PYTORCH = "https://download.pytorch.org/whl"
"""Where PyTorch publishes its builds, such as cpu and cu126 (pytorch.org/get-started)."""
LINUX = "x86_64-unknown-linux-gnu"
MACOS = "aarch64-apple-darwin"
VERSIONS = dict(re.findall(r"(?m)^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text()))


def add_wheel(
    index: Path, name: str, version: str, requires: Iterable[str] = (), uploaded: str = ""
) -> None:
    """Add an empty package to an index, which is a folder."""
    info = f"{name}-{version}.dist-info"
    wheel = f"{name}-{version}-py3-none-any.whl"
    folder = index / canonicalize_name(name)
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {it}" for it in requires)]
    with zipfile.ZipFile(folder / wheel, "w") as file:
        file.writestr(
            f"{info}/METADATA",
            "\n".join(
                [
                    "Metadata-Version: 2.1",
                    *lines,
                    "",
                ]
            ),
        )
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")
    date = f' data-upload-time="{uploaded}"' if uploaded else ""
    with (folder / "index.html").open("a") as page:
        page.write(f'<a href="{wheel.replace("+", "%2B")}"{date}>{wheel}</a>\n')


@pytest.fixture(scope="module")
def indexes(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders in place of PyPI, and of PyTorch's indexes, which show no dates."""
    folder = tmp_path_factory.mktemp("indexes")
    old = "2020-01-01T00:00:00Z"
    newest = "9000-01-01T00:00:00Z"
    versions: dict[str, str] = {
        canonicalize_name(name): version for name, version in VERSIONS.items()
    }
    wanted: list[str] = []
    for hardware in ("cpu", "nodes"):
        declared = tomllib.loads(
            (project(FRAMEWORKS[0], MODELS[0], hardware) / "pyproject.toml").read_text()
        )
        wanted += [*declared["project"]["dependencies"], *declared["dependency-groups"]["dev"]]
    for name in {canonicalize_name(Requirement(it).name) for it in wanted}:
        add_wheel(
            folder / "pypi",
            name.replace("-", "_"),
            versions[name],
            uploaded=old,
        )
    add_wheel(folder / "pypi", "numpy", "1000.0", uploaded=newest)
    for build in ("cpu", "cu126", "cu130"):
        add_wheel(folder / "whl" / build, "torch", f"{versions['torch']}+{build}")
    needed = ['triton-rocm==3.6; platform_system == "Linux"']
    add_wheel(folder / "whl/rocm7.2", "torch", f"{versions['torch']}+rocm7.2", needed)
    add_wheel(folder / "whl/rocm7.2", "triton_rocm", "3.6")
    return folder


@pytest.mark.parametrize(
    ("hardware", "platform", "chosen", "build"),
    [
        ("cpu", LINUX, None, "+cpu"),
        ("cpu", MACOS, None, ""),
        ("gpu", LINUX, None, "+cu126"),
        ("nodes", LINUX, None, "+cu130"),
        ("cpu", LINUX, "rocm", "+rocm7.2"),
    ],
)
def test_uv_plans_the_build_of_torch(
    uv: str,
    project: Project,
    indexes: Path,
    tmp_path: Path,
    hardware: str,
    platform: str,
    chosen: str | None,
    build: str,
) -> None:
    text = (project(FRAMEWORKS[0], MODELS[0], hardware) / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(text.replace(PYTORCH, (indexes / "whl").as_uri()))
    command = [uv, "sync", "--dry-run", "--no-cache", "--default-index"]
    command += [(indexes / "pypi").as_uri(), "--python", sys.executable]
    command += ["--python-platform", platform]
    if chosen:
        command += ["--no-default-groups", "--group", "dev", "--group", chosen]
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("UV_", "VIRTUAL_ENV"))
    }
    result = subprocess.run(
        command,
        cwd=tmp_path,
        env=kept | {"XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    planned = dict(re.findall(r"(?m)^ \+ ([\w-]+)==(\S+)", result.stderr))
    assert planned["torch"] == VERSIONS["torch"] + build
    assert ("triton-rocm" in planned) == (chosen == "rocm")
    assert planned["numpy"] == VERSIONS["numpy"], "not the release of the last week"
    assert {"pytest", "ruff"} <= planned.keys(), "the group `dev` is installed"


@pytest.mark.parametrize(
    ("hardware", "system", "index"),
    [
        ("cpu", "Linux", "cpu"),
        ("cpu", "Darwin", ""),
        ("gpu", "Linux", "cu126"),
        ("nodes", "Linux", ""),
    ],
)
def test_pip_takes_the_same_build(
    project: Project, tmp_path: Path, hardware: str, system: str, index: str
) -> None:
    (tmp_path / "uname").write_text(f"#!/bin/sh\necho {system}\n")
    (tmp_path / "uname").chmod(0o755)
    kept = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    folder = project(FRAMEWORKS[0], MODELS[0], hardware)

    def steps(*arguments: str) -> str:
        command = ["make", "--dry-run", f"VENV={tmp_path}/venv", "setup", *arguments]
        return subprocess.run(
            command, cwd=folder, env=kept, capture_output=True, text=True, check=True
        ).stdout

    with_pip = steps("UV=")
    assert "pip install --editable . --group dev\n" in with_pip
    from_index = re.findall(r"install '(\S+)' --index-url (\S+)", with_pip)
    assert from_index == ([("torch>=2.11", f"{PYTORCH}/{index}")] if index else [])
    if system == "Linux":
        assert f"--index-url {PYTORCH}/rocm7.2" in steps("UV=", "TORCH_BUILD=rocm")
    with_uv = steps("UV=/bin/uv", "TORCH_BUILD=rocm")
    assert f"UV_PROJECT_ENVIRONMENT={tmp_path}/venv /bin/uv sync" in with_uv
    assert "--no-default-groups --group dev --group rocm" in with_uv
    assert "pip install" not in with_uv


def test_warnings_about_the_source_of_a_package_fail_no_test(
    project: Project, tmp_path: Path
) -> None:
    """As uv does not compile what it installs: the first import does."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "needed.py").write_text('"\\."\n')
    (tmp_path / "test_own.py").write_text("def test_own() -> None:\n    import needed\n")
    settings = project(FRAMEWORKS[0], MODELS[0]) / "pyproject.toml"
    command = [sys.executable, "-m", "pytest", "-c", str(settings), "--rootdir=."]
    run_in(tmp_path, *command, "test_own.py", PYTHONPATH=str(packages))


RECORDER = """#!/bin/sh
[ "$2" != venv ] || { mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; }
echo "$0 $*" >> $LOG
exit ${FAILS:-0}
"""


def test_setup_remembers_how_it_was_called(project: Project, tmp_path: Path) -> None:
    folder = shutil.copytree(project(FRAMEWORKS[0], MODELS[0]), tmp_path / "proj")
    log = tmp_path / "log"
    for name in ("python", "uv"):
        (tmp_path / name).write_text(RECORDER)
        (tmp_path / name).chmod(0o755)

    def setup(*arguments: str, **changes: str) -> tuple[int, str, str]:
        """Return the status, the output, and what was called."""
        log.write_text("")
        command = ["make", "setup", f"PYTHON={tmp_path}/python", *arguments]
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {"PATH": path, "LOG": str(log)} | changes
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr, log.read_text()

    status, output, called = setup(FAILS="1")
    assert status != 0
    assert "uv failed; if it cannot reach an index, pip may: make setup UV= TORCH_INDEX=" in output
    status, output, called = setup("UV=", "TORCH_INDEX=")
    assert (status, "setup: ready" in output) == (0, True), output
    assert "torch is the largest download" in output
    with_pip = "-m pip install --editable . --group dev"
    assert (with_pip in called, "--index-url" in called, "uv sync" in called) == (
        True,
        False,
        False,
    )
    assert setup()[2] == "", "nothing is left to do"
    os.utime(folder / "pyproject.toml", (2**33, 2**33))  # as `fastproj add` changes it
    _, _, called = setup()
    assert (with_pip in called, "--index-url" in called, "uv sync" in called) == (
        True,
        False,
        False,
    )
    os.utime(folder / "pyproject.toml", (0, 0))
    assert (
        "--index-url https://example.org/cu126" in setup("TORCH_INDEX=https://example.org/cu126")[2]
    )
    assert f"--index-url {PYTORCH}/cu126" in setup("TORCH_BUILD=cu126")[2]
    assert "--group cu126" in setup(f"UV={tmp_path}/uv")[2]
    assert setup()[2] == "", "nothing is left to do"
    assert "--group rocm" in setup("TORCH_BUILD=rocm")[2]
