"""The project in whose folder a command runs, and the Python environment that trains it."""

import json
import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..errors import FastprojError, UsageError
from ..template.answers import ANSWERS_FILE
from ..template.yaml_file import read_answers
from .frameworks import Framework, framework

PROBE = """
import json, os, platform, sys, torch
accelerator = torch.accelerator.current_accelerator(check_available=True)
device = accelerator.type if accelerator else "cpu"
name = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
if device == "cpu" and os.path.exists("/proc/cpuinfo"):
    lines = [line for line in open("/proc/cpuinfo") if line.startswith("model name")]
    name = lines[0].split(":", 1)[1].strip() if lines else name
cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
print(json.dumps([device, cores, f"{name}, {cores} cores, torch {torch.__version__}"]))
"""
"""Run by the project's Python, as fastproj has no torch."""


class Machine(NamedTuple):
    """The machine as the project's torch sees it."""

    device: str
    cores: int
    text: str
    """One line about it."""


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
    given: list[str]
    """Options of the user for all trainings."""
    processes: int
    """Processes that train together."""

    @property
    def names(self) -> Framework:
        """What the framework calls its options."""
        return framework(self.framework)

    def environment(self) -> dict[str, str]:
        """Return the environment in which Python finds the package without installing it."""
        return {**os.environ, "PYTHONPATH": str(self.code / "src")}

    def command(
        self,
        options: list[str],
        counts_cpu: bool,
    ) -> list[str]:
        """Return the training command with options."""
        command = [str(self.python)]
        if counts_cpu:
            command.append(str(Path(__file__).with_name("cpu_clock.py")))
        if self.processes > 1:
            torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
            command += [*torchrun, str(self.processes)]
            if self.names.ranks:
                options = [*options, f"--{self.names.ranks}={self.processes}"]
        command += ["-m", f"{self.package}.train", *self.names.words]
        config = self.code / "configs/default.yaml"
        return [*command, "--config", str(config), *self.given, *options]

    def machine(self) -> Machine:
        """Ask the project's torch about the machine."""
        done = subprocess.run(
            [self.python, "-c", PROBE],
            capture_output=True,
            text=True,
            errors="replace",
            env=self.environment(),
            check=False,
        )
        try:
            return Machine(*json.loads(done.stdout))
        except (ValueError, TypeError) as error:
            reason = (done.stderr.strip() or "it printed nothing").splitlines()[-1]
            raise FastprojError(
                f"{self.python} cannot import torch ({reason}): run `make setup`, or pass --python"
            ) from error


def find_folder() -> Path:
    """Return the folder of the project that the present folder is in."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / ANSWERS_FILE).is_file():
            return folder
    raise FastprojError(f"{here} is not in a rendered project: it has no {ANSWERS_FILE}")


def find_project(
    python: Path | None,
    given: str | None,
    processes: int,
) -> TrainedProject:
    """Return the project that the present folder is in."""
    folder = find_folder()
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
        given=words(given, "--options"),
        processes=processes,
    )


def words(text: str | None, option: str) -> list[str]:
    """Return the words of an option, as a shell does."""
    try:
        return shlex.split(text or "")
    except ValueError as error:
        raise UsageError(f"{option} cannot be read ({error}): quote them as in a shell") from error
