"""Start this program once per GPU of this machine, as ranks of one run: `run.processes`.

`tools/launch.py` starts them, whose reports, exit status and handling of signals these are.
It runs in this process, which has imported torch already, and restarts nothing.
"""

import itertools
import os
import runpy
import sys

import torch

from ..config import RunConfig

ROOT = __package__.rpartition(".")[0]


def start(cfg: RunConfig, argv: list[str] | None) -> None:
    """Start the processes with the same command line, wait for them, and exit; return if this is to be the only one.

    Raises:
        UserError: there are fewer GPUs, or the config comes from a pipe.
        SystemExit: all processes have ended; with status 0, or as `tools/launch.py` describes.
    """
    if "RANK" in os.environ:
        _compare(cfg)
        return
    number, options = count(cfg), sys.argv[1:] if argv is None else argv
    if number == 1:
        return
    _refuse_pipes(cfg, options)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks that compete for cores are many times slower
    os.environ["RUN_PROCESSES"] = str(number)  # so that rank 0 does not say again that it starts
    sys.argv[1:] = ["--standalone", f"--nproc-per-node={number}", *_program(argv), *options]
    runpy.run_module(f"{ROOT}.tools.launch", run_name="__main__")
    sys.exit()


def _compare(cfg: RunConfig) -> None:
    """Say on rank 0 that a launcher has started another number of processes."""
    here = os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1"))
    if os.environ["RANK"] == "0" and str(cfg.processes) not in ("auto", here):
        print(f"run.processes={cfg.processes} has no effect: a launcher has started {here} here", flush=True)


def count(cfg: RunConfig) -> int:
    """Return how many processes `run.processes` asks for.

    Raises:
        UserError: there are fewer GPUs.
    """
    found = torch.accelerator.current_accelerator(check_available=True)
    usable = found is not None and cfg.device in ("auto", "accelerator", found.type)
    if not usable and cfg.device not in ("auto", "cpu"):
        return 1  # which then says why
    gpus = torch.accelerator.device_count() if usable else 0
    if cfg.processes == "auto" or cfg.processes is None:
        return max(gpus, 1)
    if 0 < gpus < cfg.processes:
        cfg.refuse("processes", f"it must be at most {gpus}, one per GPU of this machine; use auto, or run.device=cpu")
    return cfg.processes


def _refuse_pipes(cfg: RunConfig, options: list[str]) -> None:
    """Refuse a config that the processes cannot read again."""
    configs = [word for before, word in itertools.pairwise(options) if before == "--config"]
    configs += [word.removeprefix("--config=") for word in options if word.startswith("--config=")]
    for config in configs:  # which may be YAML as well
        if config == "-" or (os.path.exists(config) and not os.path.isfile(config)):
            cfg.refuse("processes", f"--config {config} can only be read once; write it to a file")


def _program(argv: list[str] | None) -> list[str]:
    """Return what is to be started: the module or script that runs, or `train` if that is no program of a run."""
    program = sys.modules["__main__"]
    spec, file = getattr(program, "__spec__", None), getattr(program, "__file__", None)
    if spec is not None and spec.name.startswith(f"{ROOT}."):
        return ["-m", spec.name]
    return [file] if spec is None and file and argv is None else ["-m", f"{ROOT}.train"]
