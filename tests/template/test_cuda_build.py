"""torch's build for CUDA without a GPU, and with a driver that is too old."""

import os
import subprocess
from pathlib import Path

import pytest
from matrix import ENGINE_MODEL, FRAMEWORKS
from program import Project

PYTHON = os.environ.get("FASTPROJ_CUDA_PYTHON")
OLD_DRIVER = """
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.test_all,
    pytest.mark.skipif(
        not PYTHON,
        reason="needs FASTPROJ_CUDA_PYTHON, a Python with the oldest torch that projects accept, "
        "from PyPI, and their "
        "other requirements: make test-all",
    ),
]


def run(
    folder: Path,
    *command: str,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": f"{folder}/src", "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        [str(PYTHON), *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def driver(tmp_path: Path) -> str:
    """Return the folder of a libcuda that says that it is for CUDA 12.4."""
    source = tmp_path / "old.c"
    source.write_text(OLD_DRIVER)
    subprocess.run(
        [
            "cc",
            "-shared",
            "-fPIC",
            "-o",
            str(tmp_path / "libcuda.so.1"),
            str(source),
        ],
        check=True,
    )
    return str(tmp_path)


def test_rendered_tests_pass_without_a_gpu(project: Project) -> None:
    folder = project(FRAMEWORKS[0], ENGINE_MODEL)
    assert "+cu" in run(folder, "-c", "import torch; print(torch.__version__)").stdout
    done = run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "src/proj/tests")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("device", "message"), [("accelerator", "torch finds no such device"), ("auto", "1 x cpu")]
)
def test_old_driver_is_named(
    project: Project, tmp_path: Path, driver: str, device: str, message: str
) -> None:
    options = [
        "--config=configs/default.yaml",
        f"--run.dir={tmp_path}",
        f"--run.device={device}",
        "--train.steps=2",
    ]
    done = run(
        project(FRAMEWORKS[0], ENGINE_MODEL), "-m", "proj.train", *options, LD_LIBRARY_PATH=driver
    )
    assert done.returncode == (device == "accelerator"), done.stderr
    assert message in done.stdout + done.stderr
    assert "The NVIDIA driver on your system is too old" in done.stderr
    assert "Traceback" not in done.stderr
