"""Hardware detection with recorded outputs of real tools, and with tools that are missing, slow or broken."""

import json
import os
import platform
import time
from pathlib import Path

import pytest
from fastproj.creating import gpus, hardware, probe
from matrix import ROOT
from program import Fastproj

RECORDED = ROOT / "tests/support/nvidia-smi"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A replacement for nvidia-smi, which tests write."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    program = tmp_path / "nvidia-smi"
    program.touch(0o755)
    return program


def answer(smi: Path, query: str, status: int = 0) -> None:
    """Set what it prints."""
    smi.with_suffix(".query").write_text(query)
    smi.write_text(f"#!/bin/sh\ncat {smi.with_suffix('.query')}\nexit {status}\n")


@pytest.mark.parametrize("file", sorted(RECORDED.glob("*.json")), ids=lambda file: file.stem)
def test_recorded_nvidia_smi_outputs(smi: Path, file: Path) -> None:
    case = json.loads(file.read_text())
    answer(smi, case["query"], case["status"])
    machine = hardware.detect()
    seen = [[gpu.name, gpu.capability, gpu.memory_mib, gpu.tensor_cores] for gpu in machine.gpus]
    assert seen == case["gpus"]
    assert machine.answers() == case["answers"]
    assert case.get("note", "") in " ".join(machine.notes)
    assert bool(machine.notes) == ("note" in case)


MALFORMED = [
    "",
    "\n\n",
    "hello",
    "NVIDIA A100, 8.0, 81920, Disabled",
    "NVIDIA A100, eight, 81920, Disabled, GPU-1",
    "<html>, 8.0, 1, Disabled, nothing",
    "\x00\x01\x02" * 1000,
    "a," * 30_000,
    "NVIDIA A100 8.0 81920 Disabled GPU-1",
    "x" * 60_000,
    "NVIDIA A100, 8.0, -5, Disabled, CPU-1",
]


@pytest.mark.parametrize("text", MALFORMED, ids=lambda text: ascii(text[:20]))
def test_malformed_nvidia_smi_output_finds_no_gpu(smi: Path, text: str) -> None:
    answer(smi, text)
    machine = hardware.detect()
    assert machine.gpus == ()
    assert machine.answers() == {"gpus": 0, "nodes": 1}


def test_nvidia_smi_output_that_is_not_utf8(smi: Path) -> None:
    smi.write_text("#!/bin/sh\nprintf '\\377\\376\\000'\n")
    assert hardware.detect().gpus == ()


@pytest.mark.parametrize("script", ["sleep 60", "trap '' TERM INT; sleep 60 & sleep 60"], ids=["hangs", "stubborn"])
def test_hanging_nvidia_smi_times_out(smi: Path, script: str) -> None:
    smi.write_text(f"#!/bin/sh\n{script}\n")
    started = time.monotonic()
    machine = hardware.detect()
    assert time.monotonic() - started < probe.TIMEOUT_S + 3
    assert machine.gpus == ()
    assert "nvidia-smi did not finish" in machine.notes[0]


def test_nvidia_smi_that_cannot_start_finds_no_gpu(smi: Path) -> None:
    smi.write_text("no program at all")
    machine = hardware.detect()
    assert machine.gpus == ()
    smi.chmod(0o644)
    assert hardware.detect().gpus == ()


def test_malformed_line_hides_no_other_gpu(smi: Path) -> None:
    good = "NVIDIA A100, 8.0, 81920, Disabled, GPU-1"
    answer(
        smi, f"WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n{good}\n[GPU is lost], [N/A], [N/A], [N/A], [N/A]\n"
    )
    machine = hardware.detect()
    assert [gpu.name for gpu in machine.gpus] == ["NVIDIA A100"]
    assert len(machine.notes) == 2


def test_escape_sequences_in_gpu_names_are_removed(smi: Path) -> None:
    answer(smi, "NVIDIA\x1b[2J A100, 8.0, 81920, Disabled, GPU-1")
    assert [gpu.name for gpu in hardware.detect().gpus] == ["NVIDIA?[2J A100"]


def test_more_gpus_than_allowed(smi: Path) -> None:
    answer(smi, "".join(f"A, 8.0, 1000, Disabled, GPU-{number}\n" for number in range(100)))
    assert hardware.detect().answers()["gpus"] == 64


@pytest.mark.parametrize("visible", ["MIG-aa11", "MIG-aa11,MIG-bb22", None])
def test_slices_of_a_gpu_count_as_one(smi: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None) -> None:
    answer(smi, "A, 8.0, 40960, Enabled, GPU-1\nB, 8.0, 40960, Enabled, GPU-2\n")
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    machine = hardware.detect()
    assert machine.gpus[0].name == "A (a MIG slice)"
    assert machine.answers() == {"gpus": 1, "nodes": 1, "tensor_cores": "bf16"}


@pytest.mark.parametrize(
    ("visible", "names"),
    [("0", ["A"]), ("1,0", ["B", "A"]), ("", []), ("-1", []), ("0,9,1", ["A"]), ("GPU-bb", ["B"]), ("nonsense", [])],
)
def test_cuda_visible_devices(smi: Path, monkeypatch: pytest.MonkeyPatch, visible: str, names: list[str]) -> None:
    answer(smi, "A, 8.0, 1000, Disabled, GPU-aa11\nB, 9.0, 1000, Disabled, GPU-bb22\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    machine = hardware.detect()
    assert [gpu.name for gpu in machine.gpus] == names
    assert "CUDA_VISIBLE_DEVICES" in machine.notes[0]


@pytest.mark.parametrize(
    ("capability", "name", "expected"),
    [
        ("6.1", "NVIDIA GeForce GTX 1080 Ti", "none"), ("7.0", "Tesla V100-SXM2-16GB", "fp16"),
        ("7.5", "Tesla T4", "fp16"), ("7.5", "NVIDIA GeForce GTX 1660", "none"),
        ("7.5", "NVIDIA T1000 8GB", "none"), ("7.5", "NVIDIA T1200 Laptop GPU", "none"),
        ("7.5", "Quadro T2000 with Max-Q Design", "none"), ("7.5", "NVIDIA T600", "none"),
        ("7.5", "NVIDIA T500", "none"), ("7.5", "NVIDIA T40 24GB", "fp16"),
        ("7.5", "NVIDIA T10000", "fp16"),
        ("7.5", "NVIDIA GeForce RTX 2080", "fp16"), ("8.0", "NVIDIA A100", "bf16"),
        ("8.6", "NVIDIA GeForce RTX 3090", "bf16"), ("8.9", "NVIDIA L4", "fp8"),
        ("9.0", "NVIDIA H100", "fp8"), ("10.0", "NVIDIA B200", "fp8"),
        ("12.0", "NVIDIA GeForce RTX 5090", "fp8"), (None, "?", "none"),
        ("x", "?", "none"),
    ],
)  # fmt: skip
def test_tensor_cores_of_nvidia(capability: str | None, name: str, expected: str) -> None:
    assert gpus.nvidia_format(capability, name) == expected


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("Tesla V100-SXM2-16GB, 7.0, 16384, Disabled, GPU-1, 580.95.05", "has compute capability 7.0, which torch"),
        ("Tesla P100, 6.0, 16384, Disabled, GPU-1", "has compute capability 6.0, which torch"),
        ("A, 9.0, 1, Disabled, GPU-1, 580.1\nB, 7.0, 1, Disabled, GPU-2, 580.1", "B has compute capability 7.0"),
        ("NVIDIA A100, 8.0, 81920, Disabled, GPU-1, 535.183.06", "needs the NVIDIA driver 580 or newer; this is 535"),
        ("NVIDIA H200, 9.0, 143771, Disabled, GPU-1, 570.124.06", "needs the NVIDIA driver 580 or newer; this is 570"),
        ("NVIDIA A100, 8.0, 81920, Disabled, GPU-1, 580.65", ""),
        ("Tesla T4, 7.5, 16384, Disabled, GPU-1, 610", ""),
        ("NVIDIA A100, 8.0, 81920, Disabled, GPU-1, [N/A]", ""),
    ],
)
def test_gpu_or_driver_too_old_for_cuda_13(smi: Path, rows: str, expected: str) -> None:
    answer(smi, rows)
    notes = " ".join(hardware.detect().notes)
    assert expected in notes
    assert (f"install a build for CUDA 12.6 ({gpus.CUDA_12})" in notes) == bool(expected)


def test_hidden_gpu_is_not_too_old(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(smi, "A, 9.0, 1, Disabled, GPU-1, 580.1\nB, 7.0, 1, Disabled, GPU-2, 580.1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert "capability" not in " ".join(hardware.detect().notes)


def test_notes_are_shown_by_detect_and_new(fastproj: Fastproj, smi: Path, tmp_path: Path) -> None:
    answer(smi, "Tesla V100-SXM2-16GB, 7.0, 16384, Disabled, GPU-1, 580.95.05")
    path = {"PATH": os.environ["PATH"]}
    (note,) = json.loads(fastproj("detect", **path).stdout)["notes"]
    assert note.startswith("Tesla V100-SXM2-16GB has compute capability 7.0")
    created = fastproj("new", "proj", "--yes", "--no-git", "--output", str(tmp_path), **path)
    assert "Note: Tesla V100-SXM2-16GB has compute capability 7.0" in created.stdout


def amd_machine(root: Path, targets: list[int]) -> Path:
    """Write the kernel driver's table: a CPU and GPUs of these targets."""
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    for number, target in enumerate([0, *targets]):
        (nodes / str(number) / "mem_banks/0").mkdir(parents=True)
        (nodes / str(number) / "name").write_text("aqua_vanjaram\n" if target else "\n")
        (nodes / str(number) / "properties").write_text(
            f"cpu_cores_count 0\nsimd_count 304\ngfx_target_version {target}\n"
        )
        (nodes / str(number) / "mem_banks/0/properties").write_text(
            "heap_type 1\nsize_in_bytes 206141652992\nflags 0\n"
        )
    return root


@pytest.mark.parametrize(
    ("target", "name", "expected"),
    [(90402, "gfx942", "fp8"), (90010, "gfx90a", "bf16"), (110000, "gfx1100", "bf16"), (100300, "gfx1030", "none")],
)
def test_amd(tmp_path: Path, target: int, name: str, expected: str) -> None:
    machine = hardware.detect(amd_machine(tmp_path, [target] * 2))
    assert [(gpu.vendor, gpu.capability, gpu.tensor_cores) for gpu in machine.gpus] == [("amd", name, expected)] * 2
    assert machine.gpus[0].memory_mib == 206141652992 >> 20
    assert machine.answers() == {"gpus": 2, "nodes": 1, "tensor_cores": expected}


def test_apple(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    values = {"hw.memsize": "17179869184", "machdep.cpu.brand_string": "Apple M2"}
    cases = "".join(f"{key}) echo '{value}';;" for key, value in values.items())
    (tmp_path / "sysctl").write_text(f'#!/bin/sh\ncase "$2" in {cases} esac\n')
    (tmp_path / "sysctl").chmod(0o755)
    machine = hardware.detect(tmp_path)
    assert [(gpu.vendor, gpu.name, gpu.memory_mib) for gpu in machine.gpus] == [("apple", "Apple M2", 16384)]
    assert machine.answers() == {"gpus": 1, "nodes": 1, "tensor_cores": "none"}


def test_quota_of_a_container(tmp_path: Path) -> None:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("model name\t: Some CPU\nflags\t\t: fpu\n")
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("100000 100000\n")
    machine = hardware.detect(tmp_path)
    assert (machine.cores, machine.cpu) == (1, "Some CPU")
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("max 100000\n")
    machine = hardware.detect(tmp_path)
    assert machine.cores == len(os.sched_getaffinity(0))


def test_detect_prints_json(fastproj: Fastproj, smi: Path) -> None:
    answer(smi, "NVIDIA H200, 9.0, 143771, Disabled, GPU-1")
    path = {"PATH": os.environ["PATH"]}
    found = json.loads(fastproj("detect", **path).stdout)
    assert found["answers"] == {"gpus": 1, "nodes": 1, "tensor_cores": "fp8"}
    assert found["gpus"][0]["name"] == "NVIDIA H200"
    assert found["cores"] == len(os.sched_getaffinity(0))
