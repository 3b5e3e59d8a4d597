"""The project in whose folder a command runs, and the Python environment that trains it."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..shared.answers import ANSWERS_FILE
from ..shared.errors import FastprojError
from ..shared.yaml_file import read_yaml

PROBE = """
import json, os, platform, torch
found = torch.accelerator.current_accelerator(check_available=True)
name, capability = platform.processor() or platform.machine(), [0, 0]
if found and found.type == "cuda":
    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
elif os.path.exists("/proc/cpuinfo"):
    lines = [line for line in open("/proc/cpuinfo") if line.startswith("model name")]
    name = lines[0].split(":", 1)[1].strip() if lines else name
cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
print(json.dumps({"device": found.type if found else "cpu", "name": name, "capability": capability,
    "cores": cores, "torch": torch.__version__}))
"""
"""Run by the project's Python, as fastproj has no torch."""


@dataclass(frozen=True)
class Machine:
    """The machine as the project's torch sees it."""

    device: str
    name: str
    """Name of the GPU, or of the processor."""
    capability: tuple[int, int]
    """CUDA compute capability, or (0, 0)."""
    cores: int
    torch: str

    def text(self) -> str:
        """Return one line about it."""
        return f"{self.name}, {self.cores} cores, torch {self.torch}"


@dataclass(frozen=True)
class TrainedProject:
    """A rendered project."""

    folder: Path
    package: str
    framework: str
    components: list[str]
    python: Path

    @property
    def lightning(self) -> bool:
        """Whether LightningCLI reads the options."""
        return self.framework == "lightning"

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a training command, which finds the package without installing it."""
        return {**os.environ, "PYTHONPATH": str(self.folder / "src")}

    def machine(self) -> Machine:
        """Ask the project's torch about the machine."""
        asked = subprocess.run(
            [self.python, "-c", PROBE],
            capture_output=True,
            text=True,
            env=self.environment(),
            check=False,
        )
        if asked.returncode:
            last = (asked.stderr.strip().splitlines() or ["it printed nothing"])[-1]
            raise FastprojError(
                f"{self.python} cannot import torch ({last}): run `make setup`, or pass --python"
            )
        found: dict[str, Any] = json.loads(asked.stdout.splitlines()[-1])
        return Machine(**found | {"capability": tuple(found["capability"])})


def find_project(python: Path | None) -> TrainedProject:
    """Return the project of the present folder, or of a folder above it."""
    here = Path.cwd()
    folder = next((it for it in (here, *here.parents) if (it / ANSWERS_FILE).is_file()), None)
    if folder is None:
        raise FastprojError(f"{here} is not in a rendered project: it has no {ANSWERS_FILE}")
    packages = [file.parent.name for file in sorted(folder.glob("src/*/train.py"))]
    if len(packages) != 1:
        raise FastprojError(
            f"{folder / 'src'} has {len(packages)} packages with a train.py instead of one"
        )
    try:
        answers = read_yaml(folder / ANSWERS_FILE)
    except (OSError, ValueError) as error:
        raise FastprojError(f"{folder / ANSWERS_FILE} cannot be read: {error}") from error
    if not isinstance(answers, dict) or not (folder / "configs/default.yaml").is_file():
        raise FastprojError(
            f"{folder} was rendered by another version: run `fastproj update` first"
        )
    interpreter = python or folder / ".venv/bin/python"
    if not interpreter.is_file():
        how = "it does not exist" if python else "run `make setup`, or pass --python"
        raise FastprojError(f"no Python environment at {interpreter}: {how}")
    framework, components = (
        str(answers.get("framework", "pytorch")),
        answers.get("components") or [],
    )
    return TrainedProject(
        folder, packages[0], framework, [str(it) for it in components], interpreter.absolute()
    )
