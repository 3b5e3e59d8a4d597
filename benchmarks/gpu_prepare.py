"""Render the projects of `gpu_smoke.py`, and fetch packages that a machine with torch may lack."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import yaml
from gpu_questions import MODELS
from projects import ROOT, render_project

NOT_IN_TRAINING = {"launch", "workflow", "config", "file", "kind"}
"""Keys of components that do not act in training."""
PACKAGES = [
    "jsonargparse",
    "docstring-parser",
    "typeshed-client",
    "importlib-resources",
    "pytorch-optimizer",
    "torchao",
    "simplejpeg",
]
"""All others are with torch on most machines. Of each, the newest version; no dependencies."""
PLATFORMS = ["manylinux_2_28_x86_64", "manylinux_2_24_x86_64", "manylinux2014_x86_64"]
PEERS = """import os
import sys

program = os.path.join(os.environ.get("BENCHMARKS", "benchmarks"), "gpu_peers.py")
os.execv(sys.executable, [sys.executable, program, *sys.argv[1:]])
"""
"""A program that starts `gpu_peers.py` of the repository."""
TEXT = 400_000
"""Bytes of the text that gpt and lstm read."""


def prepare(folder: Path, python: str = "") -> None:
    """Render each model with all components; unpack wheels for a version of Python."""
    components = _components()
    for model in MODELS:
        output = folder / model
        shutil.rmtree(output / "proj", ignore_errors=True)
        output.mkdir(parents=True, exist_ok=True)
        project = render_project(output, "proj", model, "--components", ",".join(components))
        (project / "text.txt").write_bytes(_text())
    (folder / "gpu_peers.py").write_text(PEERS)
    if python:
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-compile",
            "--upgrade",
            "--only-binary=:all:",
            f"--target={folder / 'site'}",
            f"--python-version={python}",
            "--implementation=cp",
        ]
        command += [f"--platform={platform}" for platform in PLATFORMS]
        subprocess.run([*command, *PACKAGES], check=True)


def _components() -> list[str]:
    """Return the components that act in training, without trackers, and what they require."""
    table = yaml.safe_load((ROOT / "copier.yml").read_text())["component_table"]["default"]
    components = []
    required = set()
    for name, entry in table.items():
        needs = entry.get("requires", [])
        if NOT_IN_TRAINING.isdisjoint(entry) and "tracker" not in needs:
            components.append(name)
            required.update(needs)
    return components + sorted(required)


def _text() -> bytes:
    """Source code of Python's standard library."""
    text = b""
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += file.read_bytes()
        if len(text) > TEXT:
            break
    return text[:TEXT]
