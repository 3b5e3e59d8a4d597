"""Detect the GPUs of NVIDIA, AMD and Apple, and the newest number format of their matrix units."""

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from .probe import field, mebibytes, printable, read_file, run_tool, sysctl

Format = Literal["none", "fp16", "bf16", "fp8"]
FORMATS: tuple[Format, ...] = get_args(Format)

_QUERY = "name,compute_cap,memory.total,mig.mode.current,uuid,driver_version"
_ROW = re.compile(r"(.+), *(\d{1,2}\.\d), *([^,]*), *([^,]*), *(GPU-[^,]*?)(?:, *(?:(\d{1,4})\.[\d.]*|[^,]*))?")
_CUDA_13_CAPABILITY, _CUDA_13_DRIVER = 7.5, 580
"""What torch from PyPI needs, as it is built for CUDA 13 (its release notes: Turing or newer, driver R580 or newer)."""
CUDA_12 = "pip install --force-reinstall 'torch<2.15' --index-url https://download.pytorch.org/whl/cu126"


@dataclass(frozen=True)
class Gpu:
    """A device that a process can train on: a GPU, or a MIG slice."""

    vendor: Literal["nvidia", "amd", "apple"]
    name: str
    capability: str | None
    """CUDA compute capability (`9.0`), or AMD's target (`gfx942`)."""
    memory_mib: int | None
    tensor_cores: Format
    """Newest number format of its matrix units."""
    is_slice: bool = False
    """Whether it is a MIG slice, of which a process sees only one."""


def detect_gpus(root: Path, notes: list[str]) -> list[Gpu]:
    """Return the GPUs that this process can use."""
    return _nvidia(notes) or _amd(root, notes) or _apple()


def nvidia_format(capability: str | None, name: str) -> Format:
    """Return the newest Tensor Core format (CUDA C++ Programming Guide, section "Compute Capabilities")."""
    match = re.fullmatch(r"(\d{1,2})\.(\d)", capability or "")
    if match is None:
        return "none"
    generation = (int(match[1]), int(match[2]))
    if generation < (7, 0) or (generation == (7, 5) and re.search(r"GTX 16|MX\d|\bT([456]00|1000|1200|2000)\b", name)):
        return "none"  # the small Turing chips have no Tensor Cores
    return "fp16" if generation < (8, 0) else "bf16" if generation < (8, 9) else "fp8"


def amd_format(target: str) -> Format:
    """Return the newest matrix format of an AMD target (ROCm documentation, "Data types and precision support")."""
    if re.match("gfx(942|950|12)", target):
        return "fp8"
    return "bf16" if re.match("gfx(908|90a|11)", target) else "none"


def _nvidia(notes: list[str]) -> list[Gpu]:
    output = run_tool(["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"], notes)
    if not output or "no devices were found" in output.lower():
        return []
    rows = {line: _ROW.fullmatch(line) for line in map(str.strip, output.splitlines()) if line}
    other = [line for line, row in rows.items() if row is None]
    notes += [f"nvidia-smi printed a line that does not describe a GPU: {printable(line)!r}" for line in other]
    drivers = [int(row[6]) for row in rows.values() if row and row[6]]
    devices: list[tuple[list[str], Gpu]] = []  # with the names that CUDA_VISIBLE_DEVICES may use
    for index, row in enumerate(filter(None, rows.values())):
        name, capability, memory, mig, uuid, _ = row.groups()
        memory_mib = int(memory) if memory.isdecimal() and mig != "Enabled" else None
        label = f"{printable(name)}{' (a MIG slice)' if mig == 'Enabled' else ''}"
        gpu = Gpu("nvidia", label, capability, memory_mib, nvidia_format(capability, name), mig == "Enabled")
        devices.append(([str(index), uuid], gpu))
    visible = _visible(devices, notes)
    notes += _not_for_cuda_13(visible, drivers)
    return visible


def _not_for_cuda_13(gpus: list[Gpu], drivers: list[int]) -> list[str]:
    """Return why torch from PyPI would not run on these GPUs, and what to install instead."""
    old = [gpu for gpu in gpus if float(gpu.capability or 99) < _CUDA_13_CAPABILITY]
    if old:
        reason = f"{old[0].name} has compute capability {old[0].capability}, which torch from PyPI does not support"
    elif gpus and min(drivers, default=_CUDA_13_DRIVER) < _CUDA_13_DRIVER:
        reason = f"torch from PyPI needs the NVIDIA driver {_CUDA_13_DRIVER} or newer; this is {min(drivers)}"
    else:
        return []
    return [f"{reason}: install a build for CUDA 12.6 ({CUDA_12})"]


def _visible(devices: list[tuple[list[str], Gpu]], notes: list[str]) -> list[Gpu]:
    """Apply CUDA_VISIBLE_DEVICES; as in CUDA, an unknown entry hides all that follow."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [gpu for _, gpu in devices]
    notes.append(f"CUDA_VISIBLE_DEVICES is {visible!r}")
    kept: list[Gpu] = []
    for entry in filter(None, map(str.strip, visible.split(","))):
        matches = str.startswith if entry.startswith("GPU-") else str.__eq__
        sliced = entry.startswith("MIG-")  # the UUID of a slice
        found = next((gpu for names, gpu in devices if sliced or any(matches(name, entry) for name in names)), None)
        if found is None:
            break
        kept.append(found)
    return kept


def _amd(root: Path, notes: list[str]) -> list[Gpu]:
    """Read the table of the kernel driver (drivers/gpu/drm/amd/amdkfd/kfd_topology.c), which needs no ROCm."""
    gpus = []
    nodes = root.glob("sys/class/kfd/kfd/topology/nodes/[0-9]*")
    for node in sorted(nodes, key=lambda path: (len(path.name), path.name)):
        version = int(field(r"gfx_target_version (\d+)$", read_file(node / "properties")) or 0)
        if version == 0:
            continue  # a CPU
        target = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
        size = field(r"size_in_bytes (\d+)$", read_file(node / "mem_banks/0/properties"))
        name = read_file(node / "name").strip() or "AMD GPU"
        gpus.append(Gpu("amd", name, target, mebibytes(size), amd_format(target)))
    if gpus and root == Path("/") and not os.access("/dev/kfd", os.R_OK | os.W_OK):
        notes.append("no permission to open /dev/kfd: join the groups render and video")
    return gpus


def _apple() -> list[Gpu]:
    if platform.system() != "Darwin" or platform.machine() != "arm64":
        return []
    name = sysctl("machdep.cpu.brand_string") or "Apple GPU"
    return [Gpu("apple", name, None, mebibytes(sysctl("hw.memsize")), "none")]
