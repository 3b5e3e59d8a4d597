"""The device of a run: what torch cannot use is refused, and nothing trains on the CPU by accident."""

import ctypes
import os
import runpy
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from .. import console, cuda, distributed, launched, techniques
from ..config import RunConfig
from ..errors import UserError
from .conftest import PARENT, SMALL, main

GPU = torch.device("cuda", 0)
CUDA_12 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
CUDA_13 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


def use_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], kernels: list[str]) -> None:
    """Let torch report one GPU and what it has kernels for."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: kernels)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")


@pytest.mark.parametrize(
    ("capability", "kernels", "way_out"),
    [
        ((7, 0), CUDA_13, r"install a build for CUDA 12.6 \(pip install .*/cu126\)"),
        ((7, 0), ["sm_90a"], "install a build for CUDA 12.6"),
        ((3, 7), CUDA_13, "no torch from 2.11 on has any, so use the CPU"),
        ((3, 7), CUDA_12, "no torch from 2.11 on has any, so use the CPU"),
        ((10, 0), ["sm_120"], "install a newer torch"),
        ((12, 0), CUDA_12, "install a newer torch"),
        ((8, 0), ["sm_75", "sm_86"], "install a newer torch"),
        ((10, 0), ["sm_90a", "compute_90a"], "install a newer torch"),
    ],
)
def test_gpu_without_kernels_is_refused(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], kernels: list[str], way_out: str
) -> None:
    use_gpu(monkeypatch, capability, kernels)
    number = f"{capability[0]}.{capability[1]}"
    said = f"no kernels for Tesla V100 of compute capability {number}.*: {way_out}"
    with pytest.raises(UserError, match=said) as refused:
        distributed._device("auto", 0)
    assert ("cu126" in str(refused.value)) == ("12.6" in way_out)
    assert str(refused.value).endswith(" use the CPU (run.device=cpu, or --device cpu of a tool)")


@pytest.mark.parametrize(
    ("capability", "kernels"),
    [
        ((7, 0), CUDA_12),
        ((8, 9), CUDA_12),
        ((9, 0), ["sm_90a"]),
        ((10, 0), ["sm_90", "compute_90"]),
        ((10, 3), ["sm_100f"]),
        ((12, 1), CUDA_13),
        ((9, 0), []),
    ],
)
def test_gpu_with_kernels_is_used(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], kernels: list[str]
) -> None:
    use_gpu(monkeypatch, capability, kernels)
    assert [distributed._device(wanted, 0) for wanted in ("auto", "accelerator", "cuda")] == [GPU] * 3
    assert distributed._device("cpu", 0) == torch.device("cpu")


def test_amd_gpus_have_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpu(monkeypatch, (9, 4), ["gfx90a", "gfx942"])
    monkeypatch.setattr(torch.version, "cuda", None)
    assert distributed._device("auto", 0) == GPU


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpu(monkeypatch, (9, 0), CUDA_13)
    with pytest.raises(UserError, match="process 1 has no GPU, as this machine has 1: start one per GPU"):
        distributed._device("auto", 1)


def program(name: str = "", file: str = "") -> Any:
    """What Python's `__main__` is, for a module or a script."""
    return SimpleNamespace(__spec__=SimpleNamespace(name=name) if name else None, __file__=file)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments of the launcher, once `run.processes` has called it."""
    arguments: list[str] = []
    outside = {name: value for name, value in os.environ.items() if name not in ("RANK", "OMP_NUM_THREADS")}
    monkeypatch.setattr(os, "environ", outside)
    monkeypatch.setattr(sys, "argv", ["train.py", "--run.seed=1"])
    monkeypatch.setitem(sys.modules, "__main__", program(f"{PARENT}.train"))
    monkeypatch.setattr(runpy, "run_module", lambda name, run_name: arguments.extend([name, *sys.argv[1:]]))
    return arguments


@pytest.mark.parametrize(
    ("wanted", "device", "gpus", "number"),
    [
        ("auto", "accelerator", 4, 4),
        ("auto", "cpu", 4, 1),
        ("auto", "auto", 0, 1),
        (2, "cuda", 4, 2),
        (2, "cpu", 1, 2),
        (3, "auto", 0, 3),
        (1, "auto", 4, 1),
        (2, "cuda", 0, 1),  # which is refused afterwards
        (5, "auto", 4, 0),
    ],
)
def test_processes_are_one_per_gpu(
    monkeypatch: pytest.MonkeyPatch, started: list[str], wanted: Any, device: Any, gpus: int, number: int
) -> None:
    found = torch.device("cuda") if gpus else None
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: found)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: gpus)
    cfg = RunConfig(processes=wanted, device=device)
    if number == 0:
        why = "run.processes is 5: it must be at most 4, one per GPU of this machine; use auto, or run.device=cpu"
        with pytest.raises(UserError, match=why):
            techniques.start_processes(cfg, None)
    elif number == 1:
        techniques.start_processes(cfg, None)
    else:
        with pytest.raises(SystemExit) as end:
            techniques.start_processes(cfg, None)
        assert end.value.code is None
    launch, train = (f"{PARENT}.{module}" for module in ("tools.launch", "train"))
    options = ["--standalone", f"--nproc-per-node={number}", "-m", train, "--run.seed=1"]
    assert started == ([launch, *options] if number > 1 else [])
    assert os.environ.get("OMP_NUM_THREADS") == ("1" if number > 1 else None)


@pytest.mark.parametrize(
    ("main", "argv", "command"),
    [
        (program(f"{PARENT}.train_copy"), None, ["-m", f"{PARENT}.train_copy", "--run.seed=1"]),
        (program(file="a/script.py"), None, ["a/script.py", "--run.seed=1"]),
        (program(file="a/tool.py"), ["--run.seed=2"], ["-m", f"{PARENT}.train", "--run.seed=2"]),
        (program("cProfile"), None, ["-m", f"{PARENT}.train", "--run.seed=1"]),
    ],
)
def test_program_is_started_again(
    monkeypatch: pytest.MonkeyPatch, started: list[str], main: Any, argv: list[str] | None, command: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "__main__", main)
    with pytest.raises(SystemExit):
        techniques.start_processes(RunConfig(processes=2, device="cpu"), argv)
    assert started[3:] == command


def test_config_from_a_pipe_is_refused_for_processes(started: list[str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for options in (["--config", f"{tmp_path}/pipe"], [f"--config={tmp_path}/pipe"], ["--config=-"]):
        with pytest.raises(
            UserError, match="run.processes is 2: --config .* can only be read once; write it to a file"
        ):
            techniques.start_processes(RunConfig(processes=2, device="cpu"), options)
    assert started == []
    with pytest.raises(SystemExit):
        techniques.start_processes(RunConfig(processes=2, device="cpu"), ["--config", "run: {name: " + "a" * 300 + "}"])


@pytest.mark.parametrize(("wanted", "note"), [("auto", False), (4, False), (2, True)])
def test_what_a_launcher_started_counts(
    started: list[str], capsys: pytest.CaptureFixture[str], wanted: Any, note: bool
) -> None:
    os.environ |= {"RANK": "0", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}
    techniques.start_processes(RunConfig(processes=wanted), None)
    assert started == []
    said = "run.processes=2 has no effect: a launcher has started 4 here\n"
    assert capsys.readouterr().out == (said if note else "")


TOGETHER = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": "1", "WORLD_SIZE": None}, "RANK=1: it must be 0, as WORLD_SIZE is not set; start it with torchrun"),
        ({"RANK": "x"}, "RANK=x: it must be an integer from 0 to 1, as WORLD_SIZE is 2"),
        ({"RANK": None}, "WORLD_SIZE=2 and no RANK: start it with torchrun"),
        ({"RANK": None, "SLURM_PROCID": "0"}, "or for srun set RANK=.SLURM_PROCID and LOCAL_RANK=.SLURM_LOCALID"),
        ({"RANK": "2"}, "RANK=2: it must be an integer from 0 to 1"),
        ({"RANK": "-1"}, "RANK=-1: it must be"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0: it must be an integer from 1; start"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE=: it must be an integer"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK=2: it must be an integer from 0 to 1"),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "1"}, "LOCAL_RANK=1: it must be 0, as LOCAL_WORLD_SIZE is 1"),
        ({"LOCAL_WORLD_SIZE": "two"}, "LOCAL_WORLD_SIZE=two: it must be an integer from 1 to 2"),
        ({"LOCAL_WORLD_SIZE": "3"}, "LOCAL_WORLD_SIZE=3: it must be"),
        ({"MASTER_ADDR": None}, "WORLD_SIZE=2 and no MASTER_ADDR"),
        ({"MASTER_PORT": None}, "WORLD_SIZE=2 and no MASTER_PORT"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT=http: it must be an integer from 1 to 65535"),
        ({"MASTER_ADDR": "no-machine.invalid"}, "MASTER_ADDR=no-machine.invalid is not known"),
        ({"MASTER_PORT": "in use"}, "the port is in use; give another MASTER_PORT"),
        ({}, "rank 0: the meeting of 2 ranks at localhost:.* failed .*: start all ranks"),
    ],
)
def test_wrong_environment_of_a_launcher_is_one_line(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str | None], message: str
) -> None:
    """Instead of a run that does nothing, a traceback, or half an hour of silence."""
    for name, seconds in (("RESOLVE", 0), ("JOIN", 0.1)):
        monkeypatch.setattr(launched, name, seconds)
    with socket.socket() as used, socket.socket() as free:
        for one in (used, free):
            one.bind(("", 0))
        ports = {"29500": str(free.getsockname()[1]), "in use": str(used.getsockname()[1])}
        used.listen()
        free.close()
        values = {name: ports.get(value, value) for name, value in (TOGETHER | changes).items() if value is not None}
        monkeypatch.setattr(os, "environ", values)
        with pytest.raises(UserError, match=message) as error, distributed.start("cpu"):
            pass
    assert "\n" not in str(error.value)


def test_wrong_environment_ends_the_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit) as end:
        main([*SMALL, f"--run.dir={tmp_path}/runs"])
    assert str(end.value.code).startswith("error: the environment has RANK=1")
    assert not (tmp_path / "runs").exists()
    monkeypatch.setattr(sys, "argv", ["train.py", "--help"])
    with pytest.raises(SystemExit):
        console.begin("proj.train", "Train.")
    assert "--config FILE" in capsys.readouterr().out


def use_driver(monkeypatch: pytest.MonkeyPatch, version: int | None, built: str | None = "13.0") -> None:
    """Let torch be built for a CUDA version and find no GPU, next to a driver that reports a version, or none."""

    class Driver:
        def __init__(self, name: str) -> None:
            if version is None:
                raise OSError(name)

        def cuDriverGetVersion(self, place: Any) -> int:  # noqa: N802 - the name in the library
            ctypes.cast(place, ctypes.POINTER(ctypes.c_int))[0] = version or 0
            return 0 if version else 34  # of a stub library

    monkeypatch.setattr(ctypes, "CDLL", Driver)
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


BUILT = "built for CUDA 13.0, the NVIDIA driver here for CUDA"
OLD = f"{BUILT} 12.8: update the driver, for a GPU before Blackwell install .*/cu126\\), or use the CPU .*--device cpu"
OLDEST = f"{BUILT} 11.4: update the driver, or use the CPU"
NO_GPU = "run.device is {}, but torch .* finds no such device: see which GPUs nvidia-smi lists, or use cpu"


@pytest.mark.parametrize(
    ("wanted", "version", "message"),
    [
        ("auto", 12080, OLD),
        ("accelerator", 12080, OLD),
        ("cuda", 12080, OLD),
        ("auto", 11040, OLDEST),
        ("accelerator", 13000, NO_GPU.format("accelerator")),
        ("cuda", 13000, NO_GPU.format("cuda")),
        ("xpu", 13000, "run.device is xpu, but torch .* finds no such device: install a build of torch for your GPU"),
    ],
)
def test_unusable_driver_is_no_silent_run_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, wanted: str, version: int, message: str
) -> None:
    use_driver(monkeypatch, version)
    with pytest.raises(UserError, match=message) as refused:
        distributed._device(wanted, 0)
    assert "\n" not in str(refused.value)
    assert distributed._device("cpu", 0) == torch.device("cpu")


@pytest.mark.parametrize(
    ("hidden", "version", "built", "why"),
    [
        (
            None,
            None,
            "13.0",
            "there is no NVIDIA driver: install it, start a container with --gpus all",
        ),
        (None, 0, "13.0", "there is no NVIDIA driver: install it"),  # a stub library
        ("", 13000, "13.0", "CUDA_VISIBLE_DEVICES= hides all GPUs: unset it"),
        ("-1", 13000, "13.0", "CUDA_VISIBLE_DEVICES=-1 hides all GPUs: unset it"),
        ("", 12020, "13.0", "CUDA_VISIBLE_DEVICES= hides all GPUs: unset it"),
        (None, 12020, None, "install a build of torch for your GPU"),
    ],
)
def test_auto_without_gpus_is_the_cpu(
    monkeypatch: pytest.MonkeyPatch, hidden: str | None, version: int | None, built: str | None, why: str
) -> None:
    use_driver(monkeypatch, version, built)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert cuda.driver_version() == (f"{version // 1000}.{version % 1000 // 10}" if version else "")
    assert distributed._device("auto", 0) == torch.device("cpu")
    for wanted in ("accelerator", "cuda"):
        said = f"run.device is {wanted}, but torch .* finds no such device: {why}.*, or use cpu"
        with pytest.raises(UserError, match=said):
            distributed._device(wanted, 0)


def test_auto_is_the_cpu_on_a_login_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the driver of the compute nodes, and no GPU."""
    use_driver(monkeypatch, 13000)
    assert distributed._device("auto", 0) == torch.device("cpu")
