"""Detect the hardware of this machine, without importing torch, and the answers that follow."""

import os
import platform
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..template.answers import Answers

Format = Literal["none", "fp16", "bf16", "fp8"]
FORMATS: list[Format] = ["none", "fp16", "bf16", "fp8"]
TIMEOUT_S = 3.0

_QUERY = ["nvidia-smi", "--query-gpu=name,compute_cap,uuid", "--format=csv,noheader"]
_ROW = re.compile(r"(.+), *(\d{1,2}\.\d), *(GPU-[^,]*)")
_SMALL_TURING = re.compile(r"GTX 16|MX\d|\bT([456]00|1000|1200|2000)\b")
"""Chips of compute capability 7.5 without Tensor Cores."""


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
    memory_gib: float = 0.0
    """That this process may use."""
    bf16: str = ""
    """The CPU's instructions for bf16, `amx_bf16` or `avx512_bf16`; empty without."""
    notes: tuple[str, ...] = ()
    """What could not be detected, and why."""

    def answers(self) -> Answers:
        """Return the answers to the template's questions that follow from the hardware."""
        if not self.gpus:
            return {"gpus": 0, "nodes": 1}
        common = min((gpu.tensor_cores for gpu in self.gpus), key=FORMATS.index)
        return {"gpus": min(len(self.gpus), 64), "nodes": 1, "tensor_cores": common}


def detect(root: Path = Path("/")) -> Machine:
    """Detect the hardware; /sys is read under `root`."""
    notes: list[str] = []
    gpus = _nvidia(notes) or _amd(root) or _apple()
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return Machine(tuple(gpus), cores, _memory(root), _bf16(root), tuple(notes))


def _memory(root: Path) -> float:
    """Return the memory of the machine, or the limit of the container, in GiB."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no Linux, or no limit
        memory = min(memory, int((root / "sys/fs/cgroup/memory.max").read_text()))
    return memory / 2**30


def _bf16(root: Path) -> str:
    flags = []
    with suppress(OSError):  # no Linux
        flags = (root / "proc/cpuinfo").read_text().split()
    return next((name for name in ("amx_bf16", "avx512_bf16") if name in flags), "")


def nvidia_format(capability: str, name: str) -> Format:
    """Return the newest Tensor Core format.

    Source: CUDA C++ Programming Guide, section "Compute Capabilities".
    """
    version = float(capability)
    if version < 7.0 or (version == 7.5 and _SMALL_TURING.search(name)):
        return "none"
    if version < 8.0:
        return "fp16"
    return "bf16" if version < 8.9 else "fp8"


def amd_format(target: str) -> Format:
    """Return the newest matrix format of an AMD target.

    Source: ROCm documentation, "Data types and precision support".
    """
    if re.match("gfx(942|950|12)", target):
        return "fp8"
    return "bf16" if re.match("gfx(908|90a|11)", target) else "none"


def _nvidia(notes: list[str]) -> list[Gpu]:
    gpus: dict[str, Gpu] = {}  # by UUID
    for line in _nvidia_smi(notes).splitlines():
        if row := _ROW.fullmatch(line.strip()):
            name, capability, uuid = row.groups()
            gpus[uuid] = Gpu(name, capability, nvidia_format(capability, name))
        else:
            notes.append(f"nvidia-smi printed a line that does not describe a GPU: {line!r:.200}")

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not gpus:
        return list(gpus.values())
    notes.append(f"CUDA_VISIBLE_DEVICES is {visible!r}")
    return _visible(gpus, visible)


def _visible(gpus: dict[str, Gpu], visible: str) -> list[Gpu]:
    """Apply CUDA_VISIBLE_DEVICES; as in CUDA, an unknown entry hides all that follow."""
    kept: list[Gpu] = []
    for entry in visible.split(","):
        place = entry.strip()
        for index, (uuid, gpu) in enumerate(gpus.items()):
            # which GPU a part of one (MIG) belongs to is not known here
            if place == str(index) or place.startswith("MIG-") or uuid.startswith(place or "none"):
                kept.append(gpu)
                break
        else:
            break
    return kept


def _nvidia_smi(notes: list[str]) -> str:
    """Return what nvidia-smi prints; empty if it is missing or, with a note, if it fails."""
    try:
        done = subprocess.run(
            _QUERY,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        return ""
    except subprocess.TimeoutExpired:
        notes.append(f"nvidia-smi did not finish in {TIMEOUT_S:g} s")
        return ""
    except OSError as error:
        notes.append(f"nvidia-smi could not be started: {error}")
        return ""
    text = done.stdout.decode(errors="replace").strip()
    if done.returncode:
        first = text.partition("\n")[0]
        notes.append(f"nvidia-smi failed with status {done.returncode}: {first}")
        return ""
    return "" if "no devices were found" in text.lower() else text


def _amd(root: Path) -> list[Gpu]:
    """Read the table of the kernel driver (drivers/gpu/drm/amd/amdkfd/kfd_topology.c)."""
    gpus = []
    for properties in root.glob("sys/class/kfd/kfd/topology/nodes/*/properties"):
        with suppress(OSError):  # the kernel hides a GPU that a container may not use
            version = re.search(r"gfx_target_version ([1-9]\d*)\n", properties.read_text())
            if version:  # 0 for a CPU
                number = int(version[1])
                target = f"gfx{number // 10000}{number // 100 % 100:x}{number % 100:x}"
                gpus.append(Gpu(f"AMD {target}", target, amd_format(target)))
    return gpus


def _apple() -> list[Gpu]:
    is_apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    return [Gpu("Apple GPU", None, "none")] if is_apple else []
