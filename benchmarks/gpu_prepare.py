"""Render the projects of `gpu_smoke.py`, and fetch the packages that a machine with torch may lack."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import yaml
from gpu_questions import MODELS

ROOT = Path(__file__).parents[1]
PACKAGES = [
    "jsonargparse",
    "docstring-parser",
    "typeshed-client",
    "importlib-resources",
    "pytorch-optimizer",
    "torchao",
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
    """Render each model with all components, and unpack wheels for a version of Python into `site`."""
    components = yaml.safe_load((ROOT / "copier.yml").read_text())["component_table"]["default"]
    others = {"launch", "workflow", "config", "file", "kind"}
    chosen = [
        name
        for name, entry in components.items()
        if not others & entry.keys() and "tracker" not in _needs(entry)
    ]
    chosen += sorted({needed for name in chosen for needed in _needs(components[name])})
    for model in MODELS:
        project = folder / model / "proj"
        if project.exists():
            shutil.rmtree(project)
        new = [
            sys.executable,
            "-m",
            "fastproj",
            "new",
            "proj",
            "--model",
            model,
            "--gpus",
            "0",
            "--yes",
            "--no-git",
        ]
        options = ["--output", str(project.parent), "--components", ",".join(chosen)]
        project.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([*new, *options], check=True, stdout=subprocess.DEVNULL)
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
        ]
        command += ["--only-binary=:all:", "--target", str(folder / "site")]
        command += [
            "--python-version",
            python,
            "--implementation",
            "cp",
            *[f"--platform={it}" for it in PLATFORMS],
        ]
        subprocess.run([*command, *PACKAGES], check=True)


def _needs(entry: dict[str, list[str]]) -> list[str]:
    return entry.get("requires", [])


def _text() -> bytes:
    """Source code of Python's standard library."""
    text = b""
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += file.read_bytes()
        if len(text) > TEXT:
            break
    return text[:TEXT]
