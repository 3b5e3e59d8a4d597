"""Hardware detection with recorded outputs, and with tools that are missing, slow or broken."""

import json
import os
import platform
import signal
from pathlib import Path

import pytest
from fastproj.creating import hardware
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


@pytest.mark.parametrize(
    "file",
    sorted(RECORDED.glob("*.json")),
    ids=lambda file: file.stem,
)
def test_recorded_nvidia_smi_outputs(smi: Path, file: Path) -> None:
    case = json.loads(file.read_text())
    answer(smi, case["query"], case["status"])
    machine = hardware.detect()
    seen = [[gpu.name, gpu.capability, gpu.tensor_cores] for gpu in machine.gpus]
    assert seen == case["gpus"]
    assert machine.answers() == case["answers"]
    assert case.get("note", "") in " ".join(machine.notes)
    assert bool(machine.notes) == ("note" in case)


MALFORMED = [
    "",
    "\n\n",
    "hello",
    "NVIDIA A100, 8.0",
    "NVIDIA A100, eight, GPU-1",
    "<html>, 8.0, nothing",
    "\x00\x01\x02" * 1000,
    "a," * 30_000,
    "NVIDIA A100 8.0 Disabled GPU-1",
    "x" * 60_000,
    "NVIDIA A100, 8.0, CPU-1",
]


@pytest.mark.parametrize(
    "text",
    MALFORMED,
    ids=lambda text: ascii(text[:20]),
)
def test_malformed_nvidia_smi_output_finds_no_gpu(smi: Path, text: str) -> None:
    answer(smi, text)
    machine = hardware.detect()
    assert machine.gpus == ()
    assert machine.answers() == {"gpus": 0, "nodes": 1}


def test_nvidia_smi_output_that_is_not_utf8(smi: Path) -> None:
    smi.write_text("#!/bin/sh\nprintf '\\377\\376\\000'\n")
    assert hardware.detect().gpus == ()


@pytest.mark.parametrize(
    "script", ["exec sleep 600", "trap '' TERM INT; sleep 600 & echo $! > $0.child; wait"]
)
def test_hanging_nvidia_smi_times_out(
    smi: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "TIMEOUT_S", 0.3)
    smi.write_text(f"#!/bin/sh\n{script}\n")
    machine = hardware.detect()
    if (child := smi.with_name("nvidia-smi.child")).exists():
        os.kill(int(child.read_text()), signal.SIGKILL)  # it still runs: nobody has waited for it
    assert machine.gpus == ()
    assert "nvidia-smi did not finish" in machine.notes[0]


def test_nvidia_smi_that_cannot_start_finds_no_gpu(smi: Path) -> None:
    smi.write_text("no program at all")
    machine = hardware.detect()
    assert machine.gpus == ()
    smi.chmod(0o644)
    assert hardware.detect().gpus == ()


def test_malformed_line_hides_no_other_gpu(smi: Path) -> None:
    good = "NVIDIA A100, 8.0, GPU-1"
    answer(
        smi,
        f"WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n{good}\n[GPU is lost], [N/A], [N/A]\n",
    )
    machine = hardware.detect()
    assert [gpu.name for gpu in machine.gpus] == ["NVIDIA A100"]
    assert len(machine.notes) == 2


def test_more_gpus_than_allowed(smi: Path) -> None:
    answer(smi, "".join(f"A, 8.0, GPU-{number}\n" for number in range(100)))
    assert hardware.detect().answers()["gpus"] == 64


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("0", ["A"]),
        ("1,0", ["B", "A"]),
        ("", []),
        ("-1", []),
        ("0,9,1", ["A"]),
        ("GPU-bb", ["B"]),
        ("MIG-aa11", ["A"]),
        ("nonsense", []),
    ],
)
def test_cuda_visible_devices(
    smi: Path, monkeypatch: pytest.MonkeyPatch, visible: str, names: list[str]
) -> None:
    answer(smi, "A, 8.0, GPU-aa11\nB, 9.0, GPU-bb22\n")
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
        ("12.0", "NVIDIA GeForce RTX 5090", "fp8"),
    ],
)  # fmt: skip
def test_tensor_cores_of_nvidia(capability: str, name: str, expected: str) -> None:
    assert hardware.nvidia_format(capability, name) == expected


@pytest.mark.usefixtures("small_template")
def test_notes_are_shown_by_detect_and_new(fastproj: Fastproj, smi: Path, tmp_path: Path) -> None:
    answer(smi, "Failed to initialize NVML: Driver/library version mismatch", status=18)
    path = {"PATH": os.environ["PATH"]}
    (note,) = json.loads(fastproj("detect", "--json", **path).stdout)["notes"]
    assert (
        note == "nvidia-smi failed with status 18: "
        "Failed to initialize NVML: Driver/library version mismatch"
    )
    created = fastproj(
        "new",
        "proj",
        "--yes",
        "--no-git",
        "--output",
        str(tmp_path),
        **path,
    )
    assert f"Note: {note}." in created.stdout


def amd_machine(root: Path, targets: list[int]) -> Path:
    """Write the kernel driver's table: a CPU and GPUs of these targets."""
    for number, target in enumerate([0, *targets]):
        node = root / "sys/class/kfd/kfd/topology/nodes" / str(number)
        node.mkdir(parents=True)
        (node / "properties").write_text(
            f"cpu_cores_count 0\nsimd_count 304\ngfx_target_version {target}\n"
        )
    return root


@pytest.mark.parametrize(
    ("target", "name", "expected"),
    [
        (90402, "gfx942", "fp8"),
        (90010, "gfx90a", "bf16"),
        (110000, "gfx1100", "bf16"),
        (100300, "gfx1030", "none"),
    ],
)
def test_amd(
    tmp_path: Path,
    target: int,
    name: str,
    expected: str,
) -> None:
    machine = hardware.detect(amd_machine(tmp_path, [target] * 2))
    gpu = hardware.Gpu(f"AMD {name}", name, expected)  # type: ignore[arg-type]
    assert machine.gpus == (gpu, gpu)
    assert machine.answers() == {"gpus": 2, "nodes": 1, "tensor_cores": expected}


def test_apple(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    machine = hardware.detect(tmp_path)
    assert machine.gpus == (hardware.Gpu("Apple GPU", None, "none"),)
    assert machine.answers() == {"gpus": 1, "nodes": 1, "tensor_cores": "none"}


def test_detect_prints_json(fastproj: Fastproj, smi: Path) -> None:
    answer(smi, "NVIDIA H200, 9.0, GPU-1")
    path = {"PATH": os.environ["PATH"]}
    found = json.loads(fastproj("detect", "--json", **path).stdout)
    assert found["answers"] == {"gpus": 1, "nodes": 1, "tensor_cores": "fp8"}
    assert found["gpus"][0]["name"] == "NVIDIA H200"
    assert found["cores"] == len(os.sched_getaffinity(0))
    cpu, gpus = fastproj("detect", **path).stdout.splitlines()
    assert cpu.startswith(f"CPU   {found['cores']} core")
    assert gpus == "GPUs  1 x NVIDIA H200, fp8"


@pytest.mark.parametrize(
    ("flags", "limit", "expected"),
    [
        ("fpu avx512_bf16 amx_bf16", "1073741824", ("amx_bf16", 1.0)),
        ("fpu avx512_bf16", "536870912", ("avx512_bf16", 0.5)),
        ("fpu avx2", "1073741824\n", ("", 1.0)),
    ],
)
def test_cpu_and_limit_of_a_container(
    flags: str, limit: str, expected: tuple[str, float], tmp_path: Path
) -> None:
    for file, text in {
        "proc/cpuinfo": f"flags : {flags}\n",
        "sys/fs/cgroup/memory.max": limit,
    }.items():
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(text)
    machine = hardware.detect(tmp_path)
    assert (machine.bf16, machine.memory_gib) == expected
