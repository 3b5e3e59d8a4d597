"""Process groups: NCCL with one rank, two ranks on one GPU over gloo, and NCCL with two GPUs.

The runs of a check share their processes, as starting these takes longer than a run.
"""

import torch

from .. import several
from ..check import Check, Figures, Lab, MissingHardwareError

OPTIONS = ["--train.steps=12", "--train.eval_every=12", "--log.every=1", "--speed.precision=fp32", "--optim.name=adamw"]
OPTIONS += ["--speed.cudnn_benchmark=false", "--data.shift=0", "--optim.lr=1e-3"]
CONVOLUTIONS = [*OPTIONS, "--model.depths=[1,1]", "--speed.channels_last=true"]
ATTENTION = [*OPTIONS, "--model.depth=2", "--model.dropout=0", "--speed.channels_last=false"]
GRAPHS = ["--speed.compile=model", "--speed.compile_mode=reduce-overhead"]
SYNC = "--dist.sync_batchnorm=true"
FSDP = "--dist.strategy=fsdp"
CLOSE, LOOSE = 1e-4, {"bf16_gradients": 5e-3, "sync_batchnorm": 1e-3}
"""Largest relative difference of a loss in fp32: 2e-7 on a CPU. Some runs round more, or have other kernels."""
WHOLE = {"resnet": CONVOLUTIONS, "vit": ATTENTION}


def _compare(lab: Lab, runs: several.Runs, backend: str, devices: list[str], micro_batch: int = 64) -> several.Ended:
    """Train on ranks, and on one without a process group with the same global batch."""
    found = several.train(lab, runs, backend, devices)
    torch.backends.cudnn.deterministic = True
    models = {runs[name][0] for name in found.runs}
    alone = {model: lab.project(model).train(*WHOLE[model], f"--train.micro_batch={micro_batch}") for model in models}
    differences = {name: run.differs(alone[runs[name][0]]) for name, run in found.runs.items()}
    lab.figures.update({f"difference_{name}": value for name, value in differences.items()})
    if found.failure:
        raise RuntimeError(f"{next(name for name in runs if name not in found.runs)}: {found.failure}")
    wrong = {name: value for name, value in differences.items() if value > LOOSE.get(name, CLOSE)}
    assert not wrong, f"losses differ: {wrong}"
    for name, seen in found.seen.items():
        expected = "FSDPModule" if name.startswith("fsdp") else "DistributedDataParallel"
        assert seen.wrapper == expected, f"{name}: the model is in {seen.wrapper or 'nothing'}, not {expected}"
    return found


def _check_strides(found: several.Ended) -> None:
    said = [text for seen in found.seen.values() for text in seen.warnings if "Grad strides" in text]
    assert not said, f"DDP copies gradients: {said[0].splitlines()[0]}"


def one_rank(lab: Lab) -> Figures:
    """DDP and FSDP2 in an NCCL group of one rank have the losses of runs without; DDP copies no gradients.

    On a GPU with SyncBatchNorm, too, last, as it is the one that torch would not synchronize on one rank.
    """
    runs = {"fsdp": ("vit", [*ATTENTION, FSDP]), "ddp": ("resnet", CONVOLUTIONS)}
    if not lab.dry:
        runs["sync_batchnorm"] = ("resnet", [*CONVOLUTIONS, SYNC])
    found = _compare(lab, runs, *(("gloo", ["cpu"]) if lab.dry else ("nccl", ["cuda:0"])))
    if not lab.dry:
        _check_strides(found)
    return {}


def one_rank_compiled(lab: Lab) -> Figures:
    """The same, compiled by blocks, and with CUDA graphs."""
    lab.needs_cuda()
    runs = {"fsdp": ("vit", [*ATTENTION, FSDP, "--speed.compile=blocks"]), "ddp": ("resnet", [*CONVOLUTIONS, *GRAPHS])}
    found = _compare(lab, runs, "nccl", ["cuda:0"])
    _check_strides(found)
    _check_compiled(found)
    assert found.seen["ddp"].captured, "no CUDA graphs are captured in reduce-overhead"
    return {}


def _check_compiled(found: several.Ended) -> None:
    for name, seen in found.seen.items():
        assert seen.graphs > 0, f"{name}: nothing was compiled"
        assert not seen.skipped_graphs, f"{name}: {seen.skipped_graphs} CUDA graphs were skipped"


def two_ranks(lab: Lab) -> Figures:
    """Two ranks on one device, over gloo, have the losses of one rank with the same global batch.

    On a GPU with SyncBatchNorm, too, which one rank alone would not synchronize.
    """
    half = [*ATTENTION, "--train.micro_batch=16"]
    quarter = [*ATTENTION, "--train.accumulate=2", "--train.micro_batch=8"]
    runs = {"ddp": ("vit", half), "accumulated": ("vit", quarter)}
    if not lab.dry:
        runs["sync_batchnorm"] = ("resnet", [*CONVOLUTIONS, "--train.micro_batch=16", SYNC])
    _compare(lab, runs, "gloo", ["cpu" if lab.dry else "cuda:0"] * 2, 32)
    return {}


def two_ranks_compiled(lab: Lab) -> Figures:
    """SyncBatchNorm, compiled."""
    lab.needs_cuda()
    options = [*CONVOLUTIONS, "--train.micro_batch=16", SYNC, "--speed.compile=model"]
    _check_compiled(_compare(lab, {"sync_batchnorm": ("resnet", options)}, "gloo", ["cuda:0"] * 2, 32))
    return {}


def two_gpus(lab: Lab) -> Figures:
    """Two ranks on two GPUs, over NCCL, have the losses of one rank with the same global batch."""
    if torch.cuda.device_count() < 2 or lab.dry:
        raise MissingHardwareError("needs two GPUs")
    half = [*ATTENTION, "--train.micro_batch=16"]
    kinds = {"fsdp": [FSDP], "ddp": [], "bf16_gradients": ["--dist.bf16_gradients=true"]}
    runs = {name: ("vit", [*half, *options]) for name, options in kinds.items()}
    runs["sync_batchnorm"] = ("resnet", [*CONVOLUTIONS, "--train.micro_batch=16", SYNC])
    _compare(lab, runs, "nccl", ["cuda:0", "cuda:1"], 32)
    return {}


def checks(lab: Lab) -> list[Check]:
    """Return the checks of eager runs."""
    named = [("two ranks on one device", two_ranks), ("one NCCL rank", one_rank), ("two GPUs", two_gpus)]
    return [Check(name, "ranks", run, 120) for name, run in named]


def compiled_checks(lab: Lab) -> list[Check]:
    """Return those of compiled ones, which take longest to start."""
    named = [("one NCCL rank, compiled", one_rank_compiled), ("two ranks, compiled", two_ranks_compiled)]
    return [Check(name, "ranks", run, 200) for name, run in named]
