"""The project in whose folder a command runs, and the Python environment that trains it."""

import json
import os
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import FastprojError
from ..template.answers import ANSWERS_FILE
from ..template.yaml_file import read_answers
from .frameworks import Framework, framework

PROBE = """
import json, os, platform, torch
accelerator = torch.accelerator.current_accelerator(check_available=True)
name, capability = platform.processor() or platform.machine(), [0, 0]
if accelerator and accelerator.type == "cuda":
    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
elif os.path.exists("/proc/cpuinfo"):
    lines = [line for line in open("/proc/cpuinfo") if line.startswith("model name")]
    name = lines[0].split(":", 1)[1].strip() if lines else name
cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
print(json.dumps({"device": accelerator.type if accelerator else "cpu", "name": name,
    "capability": capability, "cores": cores, "torch": torch.__version__}))
"""
"""Run by the project's Python, as fastproj has no torch."""
PROBE_S = 120


@dataclass(frozen=True)
class Machine:
    """The machine as the project's torch sees it."""

    device: str
    name: str
    """Name of the GPU, or of the processor."""
    capability: list[int]
    """CUDA compute capability, or [0, 0]."""
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
    code: Path
    """The folder with `src` and `configs`: the project's, or a copy of another commit's."""

    @property
    def names(self) -> Framework:
        """What the framework calls its options."""
        return framework(self.framework)

    def environment(self) -> dict[str, str]:
        """Return the environment in which Python finds the package without installing it."""
        return {**os.environ, "PYTHONPATH": str(self.code / "src")}

    def machine(self) -> Machine:
        """Ask the project's torch about the machine."""
        try:
            done = subprocess.run(
                [self.python, "-c", PROBE],
                capture_output=True,
                text=True,
                errors="replace",
                env=self.environment(),
                check=False,
                timeout=PROBE_S,
            )
        except subprocess.TimeoutExpired as error:
            raise FastprojError(f"{self.python} takes over {PROBE_S} s to import torch") from error
        if done.returncode:
            reason = (done.stderr.strip() or "it printed nothing").splitlines()[-1]
            raise FastprojError(
                f"{self.python} cannot import torch ({reason}): run `make setup`, or pass --python"
            )
        try:
            machine = Machine(**json.loads(done.stdout.splitlines()[-1]))
            # of the right types
            return replace(machine, cores=int(machine.cores), capability=list(machine.capability))
        except (ValueError, TypeError, IndexError) as error:
            raise FastprojError(
                f"{self.python} is not a Python that has torch: pass another --python"
            ) from error


def find_project(python: Path | None) -> TrainedProject:
    """Return the project of the present folder, or of a folder above it."""
    here = Path.cwd()
    folders = [folder for folder in (here, *here.parents) if (folder / ANSWERS_FILE).is_file()]
    if not folders:
        raise FastprojError(f"{here} is not in a rendered project: it has no {ANSWERS_FILE}")
    folder = folders[0]

    packages = [file.parent.name for file in folder.glob("src/*/train.py")]
    if len(packages) != 1:
        raise FastprojError(
            f"{folder / 'src'} has {len(packages)} packages with a train.py instead of one"
        )
    if not (folder / "configs/default.yaml").is_file():
        raise FastprojError(
            f"{folder} was rendered by another version: run `fastproj update` first"
        )

    interpreter = python or folder / ".venv/bin/python"
    if not interpreter.is_file():
        how = "it does not exist" if python else "run `make setup`, or pass --python"
        raise FastprojError(f"no Python environment at {interpreter}: {how}")

    answers = read_answers(folder / ANSWERS_FILE)
    components = answers.get("components") or []
    if not isinstance(components, list):
        raise FastprojError(f"{folder / ANSWERS_FILE} has components: {components}: write a list")
    return TrainedProject(
        folder=folder,
        package=packages[0],
        framework=str(answers.get("framework", "pytorch")),
        components=list(map(str, components)),
        python=interpreter.absolute(),
        code=folder,
    )
