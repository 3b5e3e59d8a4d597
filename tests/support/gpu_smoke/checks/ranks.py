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
CLOSE, LOOSE = 1e-4, {"bf16_gradients": 5e-3}
"""Largest relative difference of a loss in fp32: 2e-7 on a CPU. Some runs round more."""
WHOLE = {"resnet": CONVOLUTIONS, "vit": ATTENTION}


def _compare(
    lab: Lab, runs: several.Runs, backend: str, devices: list[str], micro_batch: int = 64
) -> tuple[Figures, several.Ended]:
    """Train on ranks, and on one without a process group with the same global batch."""
    found = several.train(lab, runs, backend, devices)
    torch.backends.cudnn.deterministic = True
    models = {model for model, _ in runs.values()}
    alone = {model: lab.project(model).train(*WHOLE[model], f"--train.micro_batch={micro_batch}") for model in models}
    differences = {name: found.runs[name].differs(alone[model]) for name, (model, _) in runs.items()}
    wrong = {name: value for name, value in differences.items() if value > LOOSE.get(name, CLOSE)}
    assert not wrong, f"losses differ: {wrong}"
    return {f"difference_{name}": value for name, value in differences.items()}, found


def one_rank(lab: Lab) -> Figures:
    """DDP and FSDP2 in an NCCL group of one rank have the losses of runs without; DDP copies no gradients."""
    runs = {"ddp": ("resnet", CONVOLUTIONS), "fsdp": ("vit", [*ATTENTION, FSDP])}
    figures, found = _compare(lab, runs, *(("gloo", ["cpu"]) if lab.dry else ("nccl", ["cuda:0"])))
    copied = [] if lab.dry else [text for text in found.warnings if "Grad strides" in text]
    assert not copied, copied[0].splitlines()[0]
    return figures


def one_rank_compiled(lab: Lab) -> Figures:
    """The same, compiled with CUDA graphs, and by blocks."""
    lab.needs_cuda()
    runs = {"ddp": ("resnet", [*CONVOLUTIONS, *GRAPHS]), "fsdp": ("vit", [*ATTENTION, FSDP, "--speed.compile=blocks"])}
    figures, found = _compare(lab, runs, "nccl", ["cuda:0"])
    assert not found.skipped_graphs, f"{found.skipped_graphs} CUDA graphs were skipped"
    return figures


def two_ranks(lab: Lab) -> Figures:
    """Two ranks on one device, over gloo, have the losses of one rank with the same global batch.

    On a GPU with SyncBatchNorm, too, which one rank alone would not synchronize.
    """
    half = [*ATTENTION, "--train.micro_batch=16"]
    quarter = [*ATTENTION, "--train.accumulate=2", "--train.micro_batch=8"]
    runs = {"ddp": ("vit", half), "accumulated": ("vit", quarter)}
    if not lab.dry:
        runs["sync_batchnorm"] = ("resnet", [*CONVOLUTIONS, "--train.micro_batch=16", SYNC])
    figures, _ = _compare(lab, runs, "gloo", ["cpu" if lab.dry else "cuda:0"] * 2, 32)
    return figures


def two_ranks_compiled(lab: Lab) -> Figures:
    """SyncBatchNorm, compiled."""
    lab.needs_cuda()
    options = [*CONVOLUTIONS, "--train.micro_batch=16", SYNC, "--speed.compile=model"]
    return _compare(lab, {"sync_batchnorm": ("resnet", options)}, "gloo", ["cuda:0"] * 2, 32)[0]


def two_gpus(lab: Lab) -> Figures:
    """Two ranks on two GPUs, over NCCL, have the losses of one rank with the same global batch."""
    if torch.cuda.device_count() < 2 or lab.dry:
        raise MissingHardwareError("needs two GPUs")
    half = [*ATTENTION, "--train.micro_batch=16"]
    kinds = {"ddp": [], "bf16_gradients": ["--dist.bf16_gradients=true"], "fsdp": [FSDP]}
    runs = {name: ("vit", [*half, *options]) for name, options in kinds.items()}
    return _compare(lab, runs, "nccl", ["cuda:0", "cuda:1"], 32)[0]


def checks(lab: Lab) -> list[Check]:
    """Return the checks of eager runs."""
    named = [("two ranks on one device", two_ranks), ("one NCCL rank", one_rank), ("two GPUs", two_gpus)]
    return [Check(name, "ranks", run, 120) for name, run in named]


def compiled_checks(lab: Lab) -> list[Check]:
    """Return those of compiled ones, which take longest to start."""
    named = [("one NCCL rank, compiled", one_rank_compiled), ("two ranks, compiled", two_ranks_compiled)]
    return [Check(name, "ranks", run, 200) for name, run in named]
