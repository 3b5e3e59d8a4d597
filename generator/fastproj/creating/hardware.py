"""Detect the hardware of this machine, without importing torch, and the answers that follow from it."""

import os
import platform
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

Format = Literal["none", "fp16", "bf16", "fp8"]
FORMATS: tuple[Format, ...] = get_args(Format)
TIMEOUT_S = 3.0

_QUERY = ["nvidia-smi", "--query-gpu=name,compute_cap,uuid", "--format=csv,noheader"]
_ROW = re.compile(r"(.+), *(\d{1,2}\.\d), *(GPU-[^,]*)")


@dataclass(frozen=True)
class Gpu:
    """A GPU that a process can train on."""

    name: str
    capability: str | None
    """CUDA compute capability (`9.0`), or AMD's target (`gfx942`)."""
    tensor_cores: Format
    """Newest number format of its matrix units."""


@dataclass(frozen=True)
class Machine:
    """The hardware of a machine that this process may use."""

    gpus: tuple[Gpu, ...]
    cores: int
    notes: tuple[str, ...] = ()
    """What could not be detected, and why."""

    def answers(self) -> dict[str, Any]:
        """Return the answers to the template's questions that follow from the hardware."""
        if not self.gpus:
            return {"gpus": 0, "nodes": 1}
        common = min((gpu.tensor_cores for gpu in self.gpus), key=FORMATS.index)
        return {"gpus": min(len(self.gpus), 64), "nodes": 1, "tensor_cores": common}


def detect(root: Path = Path("/")) -> Machine:
    """Detect the hardware; /sys is read under `root`."""
    notes: list[str] = []
    gpus = _nvidia(notes) or _amd(root) or _apple()
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return Machine(tuple(gpus), cores, tuple(notes))


def nvidia_format(capability: str, name: str) -> Format:
    """Return the newest Tensor Core format (CUDA C++ Programming Guide, section "Compute Capabilities")."""
    major, minor = capability.split(".")
    generation = (int(major), int(minor))
    if generation < (7, 0) or (
        generation == (7, 5) and re.search(r"GTX 16|MX\d|\bT([456]00|1000|1200|2000)\b", name)
    ):
        return "none"  # the small Turing chips have no Tensor Cores
    return "fp16" if generation < (8, 0) else "bf16" if generation < (8, 9) else "fp8"


def amd_format(target: str) -> Format:
    """Return the newest matrix format of an AMD target (ROCm documentation, "Data types and precision support")."""
    if re.match("gfx(942|950|12)", target):
        return "fp8"
    return "bf16" if re.match("gfx(908|90a|11)", target) else "none"


def _nvidia(notes: list[str]) -> list[Gpu]:
    devices: list[tuple[str, Gpu]] = []  # with the UUID
    for line in filter(None, map(str.strip, _output(_QUERY, notes).splitlines())):
        if row := _ROW.fullmatch(line):
            name, capability, uuid = row.groups()
            devices.append((uuid, Gpu(name, capability, nvidia_format(capability, name))))
        else:
            notes.append(f"nvidia-smi printed a line that does not describe a GPU: {line!r:.200}")
    return _visible(devices, notes)


def _visible(devices: list[tuple[str, Gpu]], notes: list[str]) -> list[Gpu]:
    """Apply CUDA_VISIBLE_DEVICES; as in CUDA, an unknown entry hides all that follow."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not devices:
        return [gpu for _, gpu in devices]
    notes.append(f"CUDA_VISIBLE_DEVICES is {visible!r}")
    kept: list[Gpu] = []
    for entry in map(str.strip, visible.split(",")):
        matches = [
            gpu
            for index, (uuid, gpu) in enumerate(devices)
            if entry.startswith("MIG-")
            or entry == str(index)
            or (entry.startswith("GPU-") and uuid.startswith(entry))
        ]
        if not matches:
            break
        kept.append(matches[0])
    return kept


def _output(command: list[str], notes: list[str]) -> str:
    """Return what a tool prints; empty if it is missing or, with a note, if it fails."""
    tool = command[0]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        return ""
    except (OSError, subprocess.TimeoutExpired) as error:
        late = isinstance(error, subprocess.TimeoutExpired)
        notes.append(
            f"{tool} {f'did not finish in {TIMEOUT_S:g} s' if late else f'could not be started: {error}'}"
        )
        return ""
    text = done.stdout.decode(errors="replace").strip()
    if done.returncode:
        notes.append(f"{tool} failed with status {done.returncode}: {text.partition(chr(10))[0]}")
    return "" if done.returncode or "no devices were found" in text.lower() else text


def _amd(root: Path) -> list[Gpu]:
    """Read the table of the kernel driver (drivers/gpu/drm/amd/amdkfd/kfd_topology.c), which needs no ROCm."""
    texts = []
    for properties in root.glob("sys/class/kfd/kfd/topology/nodes/*/properties"):
        with suppress(OSError):  # the kernel hides a GPU that a container may not use
            texts.append(properties.read_text())
    # 0 for a CPU
    versions = map(
        int, re.findall(r"^gfx_target_version ([1-9]\d*)$", "\n".join(texts), re.MULTILINE)
    )
    targets = [f"gfx{it // 10000}{it // 100 % 100:x}{it % 100:x}" for it in versions]
    return [Gpu(f"AMD {target}", target, amd_format(target)) for target in targets]


def _apple() -> list[Gpu]:
    is_apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    return [Gpu("Apple GPU", None, "none")] if is_apple else []
