"""See the machine, without importing torch: its GPUs, cores, memory and instructions, and the answers that follow.

A tool that is missing, slow, broken or lying costs at most three seconds and a note; it never fails the command.
"""

import os
import platform
import re
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

Kind = Literal["none", "fp16", "bf16", "fp8"]
KINDS: tuple[Kind, ...] = ("none", "fp16", "bf16", "fp8")

TIMEOUT_S = 3.0
_QUERY = ("name", "compute_cap", "memory.total", "mig.mode.current", "uuid")


@dataclass(frozen=True)
class Gpu:
    """One device that a process can train on: a GPU, or one MIG slice of it."""

    vendor: Literal["nvidia", "amd", "apple"]
    name: str
    capability: str | None
    """CUDA compute capability (`9.0`), or AMD's target (`gfx942`)."""
    memory_mib: int | None
    tensor_cores: Kind
    """Newest number format of its matrix units."""
    is_slice: bool = False
    """Whether it is a part of a GPU (MIG), of which a process sees but one."""


@dataclass(frozen=True)
class Machine:
    """What was found."""

    system: str
    gpus: tuple[Gpu, ...]
    cpu: str
    cores: int
    """Cores that this process may use: affinity and container limits counted in."""
    memory_mib: int | None
    """Memory that this process may use, likewise."""
    cpu_bf16: bool
    """Whether the CPU multiplies matrices in bfloat16."""
    notes: tuple[str, ...] = field(default=())
    """What could not be found out, and why."""

    def answers(self) -> dict[str, Any]:
        """Return the answers to the template's questions that follow from the machine."""
        if not self.gpus:
            return {"gpus": 0, "nodes": 1}
        # NCCL joins whole GPUs and not slices of one, so slices are for runs of one process each.
        gpus = 1 if any(gpu.is_slice for gpu in self.gpus) else min(len(self.gpus), 64)
        return {"gpus": gpus, "nodes": 1, "tensor_cores": min_kind(self.gpus)}


def min_kind(gpus: Sequence[Gpu]) -> Kind:
    """Return the number format that all of the GPUs have."""
    return KINDS[min(KINDS.index(gpu.tensor_cores) for gpu in gpus)]


def detect(root: Path = Path("/")) -> Machine:
    """Look at this machine; `root` is where /proc and /sys are read from."""
    notes: list[str] = []
    gpus = _nvidia(notes) or _amd(root, notes) or _apple(notes)
    flags = _cpu_flags(root)
    return Machine(
        system=f"{platform.system()} {platform.machine()}",
        gpus=tuple(gpus),
        cpu=_cpu_name(root),
        cores=_cores(root),
        memory_mib=_memory_mib(root),
        cpu_bf16=bool(flags & {"avx512_bf16", "amx_bf16", "bf16"}) or _sysctl("hw.optional.arm.FEAT_BF16") == "1",
        notes=tuple(notes),
    )


def nvidia_kind(capability: str | None, name: str) -> Kind:
    """Newest Tensor Core format by compute capability (CUDA C++ Programming Guide, section on compute capabilities)."""
    match = re.fullmatch(r"(\d{1,2})\.(\d)", capability or "")
    if match is None:
        return "none"
    generation = (int(match[1]), int(match[2]))
    if generation < (7, 0) or (generation == (7, 5) and re.search(r"GTX 16|MX\d|T[456]00\b", name)):
        return "none"  # the small Turing chips have no Tensor Cores
    return "fp16" if generation < (8, 0) else "bf16" if generation < (8, 9) else "fp8"


def amd_kind(target: str) -> Kind:
    """Newest matrix format of an AMD target (ROCm documentation, data types and precision support)."""
    if target in ("gfx942", "gfx950") or target.startswith("gfx12"):
        return "fp8"
    return "bf16" if target in ("gfx908", "gfx90a") or target.startswith("gfx11") else "none"


def run_tool(command: Sequence[str], notes: list[str]) -> str | None:
    """Return what a tool prints, None where it is missing or fails; a note says why, except for a missing tool.

    A tool that takes more than three seconds or prints more than a megabyte is killed, with all that it started.
    """
    tool = command[0]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        notes.append(f"{tool} could not be started: {error.strerror}")
        return None
    deadline = time.monotonic() + TIMEOUT_S
    try:
        output = _read_until_end(process, deadline)
        status = process.wait(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        notes.append(f"{tool} gave no answer in {TIMEOUT_S:g} s")
        return None
    finally:
        _kill_group(process)
    text = output.decode(errors="replace")
    if status != 0:
        first = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
        notes.append(f"{tool} failed with status {status}: {_printable(first)}")
        return None
    return text


def _read_until_end(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    """Read what a tool prints, up to a megabyte.

    Raises:
        subprocess.TimeoutExpired: the deadline passed.
    """
    assert process.stdout is not None
    output = b""
    while len(output) < 1 << 20:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise subprocess.TimeoutExpired(process.args, TIMEOUT_S)
        piece = os.read(process.stdout.fileno(), 1 << 16)
        if not piece:
            break
        output += piece
    return output


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the tool and what it left running. One that hangs in the driver cannot be killed, and is left behind."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdout is not None:
        process.stdout.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=0.2)


def _printable(text: str) -> str:
    """Take out what would move a terminal's cursor, and cut what is too long."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:200]


def _nvidia(notes: list[str]) -> list[Gpu]:
    output = run_tool(["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"], notes)
    if output is None or "no devices were found" in output.lower():
        return []
    devices: list[tuple[list[str], Gpu]] = []  # each with the names by which CUDA_VISIBLE_DEVICES may call it
    slices: dict[str, list[tuple[str, str]]] | None = None
    index = 0
    for line in filter(None, (line.strip() for line in output.splitlines())):
        row = [part.strip() for part in line.split(",")]
        if len(row) != len(_QUERY) or not row[4].startswith("GPU-") or not re.fullmatch(r"\d{1,2}\.\d", row[1]):
            notes.append(f"nvidia-smi printed a line that is no GPU's: {_printable(line)!r}")
            continue
        name, capability, memory, mig, uuid = row
        ids = [str(index), uuid]
        index += 1
        memory_mib = int(memory) if memory.isdecimal() and int(memory) < 1 << 24 else None
        gpu = Gpu("nvidia", _printable(name), capability, memory_mib, nvidia_kind(capability, name))
        if mig != "Enabled":
            devices.append((ids, gpu))
            continue
        slices = _slices(notes) if slices is None else slices
        parts = slices.get(uuid, [])
        if not parts:
            notes.append(
                f"{gpu.name} is in MIG mode without a slice: make one with nvidia-smi mig -cgi, or turn MIG off"
            )
        for number, (profile, part_uuid) in enumerate(parts):
            size = re.search(r"(\d+)gb", profile)
            part_mib = int(size[1]) * 1024 if size else None
            part = replace(gpu, name=f"{gpu.name} MIG {profile}", memory_mib=part_mib, is_slice=True)
            devices.append(
                ([part_uuid, *(ids if number == 0 else [])], part)
            )  # the GPU's own names mean its first slice
    return _visible(devices, notes)


def _slices(notes: list[str]) -> dict[str, list[tuple[str, str]]]:
    """Profile and UUID of each MIG slice, by the UUID of its GPU."""
    slices: dict[str, list[tuple[str, str]]] = {}
    current = ""
    for line in (run_tool(["nvidia-smi", "-L"], notes) or "").splitlines():
        if whole := re.match(r"GPU \d+: .*\(UUID: (GPU-[\w-]+)\)", line):
            current = whole[1]
        elif part := re.match(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[^)]+)\)", line):
            slices.setdefault(current, []).append((part[1], part[2]))
    return slices


def _visible(devices: list[tuple[list[str], Gpu]], notes: list[str]) -> list[Gpu]:
    """Keep what CUDA_VISIBLE_DEVICES leaves to this process; an unknown entry hides all after it, as in CUDA."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [gpu for _, gpu in devices]
    notes.append(f"CUDA_VISIBLE_DEVICES is {visible!r}")
    kept: list[Gpu] = []
    for entry in filter(None, (part.strip() for part in visible.split(","))):
        by_uuid = entry.startswith(("GPU-", "MIG-"))
        found = [
            gpu for ids, gpu in devices if any(call == entry or (by_uuid and call.startswith(entry)) for call in ids)
        ]
        if not found:
            break
        kept += found[:1]
    return kept


def _amd(root: Path, notes: list[str]) -> list[Gpu]:
    """Read the kernel driver's own table (drivers/gpu/drm/amd/amdkfd/kfd_topology.c); it needs no ROCm."""
    gpus = []
    for node in sorted(
        root.glob("sys/class/kfd/kfd/topology/nodes/[0-9]*"), key=lambda path: (len(path.name), path.name)
    ):
        properties = dict(re.findall(r"^(\w+) (\d+)$", _read(node / "properties"), re.MULTILINE))
        version = int(properties.get("gfx_target_version", 0))
        if version == 0:
            continue  # a CPU
        target = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
        size = re.search(r"^size_in_bytes (\d+)$", _read(node / "mem_banks/0/properties"), re.MULTILINE)
        name = _read(node / "name").strip() or "AMD GPU"
        gpus.append(Gpu("amd", name, target, int(size[1]) >> 20 if size else None, amd_kind(target)))
    if gpus and not os.access("/dev/kfd", os.R_OK | os.W_OK) and root == Path("/"):
        notes.append("/dev/kfd may not be opened by this user: join the groups render and video")
    return gpus


def _apple(notes: list[str]) -> list[Gpu]:
    if platform.system() != "Darwin" or platform.machine() != "arm64":
        return []
    memory = _sysctl("hw.memsize")
    name = _sysctl("machdep.cpu.brand_string") or "Apple GPU"
    return [Gpu("apple", name, None, int(memory) >> 20 if memory.isdecimal() else None, "none")]


def _sysctl(key: str) -> str:
    if platform.system() != "Darwin":
        return ""
    return (run_tool(["sysctl", "-n", key], []) or "").strip()


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _cpu_flags(root: Path) -> set[str]:
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", _read(root / "proc/cpuinfo"), re.MULTILINE)
    return set(found[1].split()) if found else set()


def _cpu_name(root: Path) -> str:
    found = re.search(r"^model name\s*:\s*(.*)$", _read(root / "proc/cpuinfo"), re.MULTILINE)
    return (found[1] if found else _sysctl("machdep.cpu.brand_string")) or platform.machine()


def _cores(root: Path) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = re.match(r"(\d+) (\d+)", _read(root / "sys/fs/cgroup/cpu.max"))
    return max(1, min(cores, round(int(quota[1]) / int(quota[2])))) if quota else cores


def _memory_mib(root: Path) -> int | None:
    found = re.search(r"^MemTotal:\s+(\d+) kB$", _read(root / "proc/meminfo"), re.MULTILINE)
    sizes = [int(found[1]) >> 10] if found else []
    limit = _read(root / "sys/fs/cgroup/memory.max").strip()
    sizes += [int(limit) >> 20] if limit.isdecimal() else []
    whole = _sysctl("hw.memsize")
    sizes += [int(whole) >> 20] if whole.isdecimal() else []
    return min(sizes, default=None)
