"""`make gpu-bundle`: what a GPU machine without a network lacks, in a folder of at most 60 MB.

- `projects.tar.gz`: every framework with every model, rendered for GPUs;
- `wheels/`: the packages that the projects import, but for torch and numpy, which the machine must have;
- `data/`: the files of the built-in data sets, in place of scikit-learn.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import distributions, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "build" / "gpu-bundle"
PROJECTS = "projects.tar.gz"
LIMIT = 60_000_000
"""Bytes."""
WANTED = ["jsonargparse[signatures]", "tqdm", "filelock", "lightning", "accelerate", "torchao"]
"""What the projects import at the start, or for a technique that is checked. TensorBoard, Pillow and polars are not."""
PRESENT = {"torch", "numpy", "setuptools", "pip"}
DATA = ["digits.csv.gz", "breast_cancer.csv"]
"""The files of scikit-learn that the projects read without importing it."""
ANSWERS = ["--gpus=1", "--nodes=1", "--tensor-cores=bf16", "--launchers=none", "--yes", "--no-git"]


def main() -> None:
    """Fill the folder."""
    parser = argparse.ArgumentParser(description="Collect what `make gpu-smoke` needs on a machine without a network.")
    parser.add_argument("--python-version", default="3.12")
    parser.add_argument("--platform", default="manylinux_2_28_x86_64", help="as of a wheel's name")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder; it is replaced")
    args = parser.parse_args()
    shutil.rmtree(args.output, ignore_errors=True)
    pack(args.output)
    copy_data(args.output / "data")
    download(resolve(args.python_version), args.python_version, args.platform, args.output / "wheels")
    print(f"{args.output}: {check_size(args.output) / 1e6:.1f} MB")


def check_size(folder: Path) -> int:
    """Return the bytes in a folder, or end the program if they are too many."""
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    if size > LIMIT:
        sys.exit(f"error: {folder} has {size / 1e6:.0f} MB, more than {LIMIT / 1e6:.0f}: take a package out of WANTED")
    return size


def pack(folder: Path, pairs: list[tuple[str, str]] | None = None) -> None:
    """Render projects into a compressed archive."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(folder / PROJECTS, "w:gz") as archive:
        render(Path(scratch, "projects"), pairs)
        archive.add(Path(scratch, "projects"), "projects")


def render(folder: Path, pairs: list[tuple[str, str]] | None = None) -> None:
    """Render projects for a machine with one GPU, each in a folder `<framework>-<model>`."""
    import yaml  # imported here because a GPU machine may lack it

    folder.mkdir(parents=True)
    # This checkout's template, also where another checkout is installed.
    search = [str(ROOT / "generator"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(search)}
    questions = yaml.safe_load((ROOT / "copier.yml").read_text())
    every = [
        (framework, model)
        for framework in questions["frameworks"]["default"]
        for model in questions["models"]["default"]
    ]
    for framework, model in pairs or every:
        chosen = [f"--framework={framework}", f"--model={model}", f"--output={folder}"]
        new = [sys.executable, "-m", "fastproj", "new", f"{framework}-{model}", *ANSWERS, *chosen]
        subprocess.run(new, check=True, stdout=subprocess.DEVNULL, env=environment)


def copy_data(folder: Path) -> None:
    """Copy the data files into a folder `sklearn`, which Python takes for a package where there is no other."""
    spec = find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    for name in DATA:
        file = Path("datasets", "data", name)
        target = folder / "sklearn" / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(spec.origin).parent / file, target)


def resolve(python_version: str) -> list[str]:
    """Return the packages in WANTED and what they require, with the versions that are installed here."""
    from packaging.markers import default_environment
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    target = {**default_environment(), "python_version": python_version, "python_full_version": f"{python_version}.0"}
    done: set[tuple[str, frozenset[str]]] = set()
    queue = [Requirement(text) for text in WANTED]
    while queue:
        wanted = queue.pop()
        name, extras = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if name in PRESENT or (name, extras) in done:
            continue
        done.add((name, extras))
        for needed in map(Requirement, requires(name) or []):
            contexts: list[dict[str, Any]] = [{**target, "extra": extra} for extra in (extras or {""})]
            if needed.marker is None or any(needed.marker.evaluate(context) for context in contexts):
                queue.append(needed)
    return sorted({f"{name}=={version(name)}" for name, _ in done})


def download(packages: list[str], python_version: str, platform: str, folder: Path) -> None:
    """Download wheels."""
    fixed = ["--no-deps", "--only-binary=:all:", f"--python-version={python_version}", f"--platform={platform}"]
    older = re.sub("_2_28_", "_2_17_", platform)
    command = [sys.executable, "-m", "pip", "download", "--quiet", *fixed, f"--platform={older}", f"--dest={folder}"]
    subprocess.run([*command, *packages], check=True)


def canonicalize(name: str) -> str:
    """Return a distribution's name as PEP 503 writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def unpack(folder: Path, target: Path) -> None:
    """Unpack `projects`, and into `packages` the wheels that this Python lacks; what it has fits its other packages."""
    shutil.unpack_archive(folder / PROJECTS, target, "gztar", filter="data")
    names: list[str | None] = [found.name for found in distributions()]  # None where a removal has left a folder
    installed = {canonicalize(name) for name in names if name}
    for wheel in sorted((folder / "wheels").glob("*.whl")):
        if canonicalize(wheel.name.split("-")[0]) not in installed:
            shutil.unpack_archive(wheel, target / "packages", "zip")


if __name__ == "__main__":
    main()
