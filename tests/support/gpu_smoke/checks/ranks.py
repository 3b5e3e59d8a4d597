"""Process groups: NCCL with one rank, two ranks on one GPU over gloo, and NCCL with two GPUs."""

import torch

from .. import several
from ..check import Check, Figures, Lab, MissingHardwareError

OPTIONS = ["--train.steps=12", "--train.eval_every=12", "--log.every=1", "--speed.precision=fp32", "--optim.name=adamw"]
OPTIONS += ["--speed.cudnn_benchmark=false", "--data.shift=0", "--optim.lr=1e-3"]
CONVOLUTIONS = [*OPTIONS, "--speed.channels_last=true"]
ATTENTION = [*OPTIONS, "--model.dropout=0", "--speed.channels_last=false"]
GRAPHS = ["--speed.compile=model", "--speed.compile_mode=reduce-overhead"]
SYNC = "--dist.sync_batchnorm=true"
FSDP = "--dist.strategy=fsdp"
CLOSE = 5e-3
"""Largest relative difference of a loss in fp32."""


def _alone(lab: Lab) -> tuple[str, list[str]]:
    """Return backend and device of a group of one rank."""
    return ("gloo", ["cpu"]) if lab.dry else ("nccl", ["cuda:0"])


def one_rank(lab: Lab) -> Figures:
    """DDP in an NCCL group of one rank has the losses of a run without, and no warning about gradients' strides."""
    found = several.train(lab, "resnet", {"ddp": CONVOLUTIONS}, *_alone(lab))
    figures = several.compare(found, lab.project("resnet").train(*CONVOLUTIONS), CLOSE)
    copied = [] if lab.dry else [text for text in found["warnings"] if "Grad strides" in text]
    assert not copied, copied[0].splitlines()[0]
    return {**figures}


def one_rank_sharded(lab: Lab) -> Figures:
    """FSDP2 in an NCCL group of one rank has the losses of a run without."""
    found = several.train(lab, "vit", {"fsdp": [*ATTENTION, FSDP]}, *_alone(lab))
    return {**several.compare(found, lab.project("vit").train(*ATTENTION), CLOSE)}


def one_rank_sharded_compiled(lab: Lab) -> Figures:
    """The same, compiled by blocks."""
    lab.needs_cuda()
    found = several.train(lab, "vit", {"fsdp": [*ATTENTION, FSDP, "--speed.compile=blocks"]}, *_alone(lab))
    return {**several.compare(found, lab.project("vit").train(*ATTENTION), CLOSE)}


def one_rank_graphs(lab: Lab) -> Figures:
    """DDP, compiled with CUDA graphs, has the losses of an eager run without."""
    lab.needs_cuda()
    found = several.train(lab, "resnet", {"ddp": [*CONVOLUTIONS, *GRAPHS]}, "nccl", ["cuda:0"])
    return {**several.compare(found, lab.project("resnet").train(*CONVOLUTIONS), CLOSE)}


def two_ranks(lab: Lab) -> Figures:
    """Two ranks on one device, over gloo, have the losses of one rank with the same global batch."""
    device = "cpu" if lab.dry else "cuda:0"
    half = [*ATTENTION, "--train.micro_batch=16"]
    runs = {"ddp": half, "accumulated": [*half, "--train.accumulate=2", "--train.micro_batch=8"]}
    found = several.train(lab, "vit", runs, "gloo", [device, device])
    return {**several.compare(found, lab.project("vit").train(*ATTENTION, "--train.micro_batch=32"), CLOSE)}


def two_ranks_batchnorm(lab: Lab) -> Figures:
    """The same with SyncBatchNorm, which one rank alone would not synchronize."""
    return _synchronized(lab, [])


def two_ranks_batchnorm_compiled(lab: Lab) -> Figures:
    """The same, compiled."""
    return _synchronized(lab, [GRAPHS[0]])


def _synchronized(lab: Lab, options: list[str]) -> Figures:
    lab.needs_cuda()
    runs = {"sync_batchnorm": [*CONVOLUTIONS, "--train.micro_batch=16", SYNC, *options]}
    found = several.train(lab, "resnet", runs, "gloo", ["cuda:0", "cuda:0"])
    return {**several.compare(found, lab.project("resnet").train(*CONVOLUTIONS, "--train.micro_batch=32"), CLOSE)}


def two_gpus(lab: Lab) -> Figures:
    """Two ranks on two GPUs, over NCCL, have the losses of one rank with the same global batch."""
    if torch.cuda.device_count() < 2 or lab.dry:
        raise MissingHardwareError("needs two GPUs")
    half = [*ATTENTION, "--train.micro_batch=16"]
    runs = {"ddp": half, "bf16_gradients": [*half, "--dist.bf16_gradients=true"], "fsdp": [*half, FSDP]}
    found = several.train(lab, "vit", runs, "nccl", ["cuda:0", "cuda:1"])
    return {**several.compare(found, lab.project("vit").train(*ATTENTION, "--train.micro_batch=32"), CLOSE)}


def checks(lab: Lab) -> list[Check]:
    """Return the checks of eager runs."""
    named = [
        ("two ranks on one device", two_ranks),
        ("two ranks, SyncBatchNorm", two_ranks_batchnorm),
        ("one NCCL rank", one_rank),
        ("one NCCL rank, sharded", one_rank_sharded),
        ("two GPUs", two_gpus),
    ]
    return [Check(name, "ranks", run, 120) for name, run in named]


def compiled_checks(lab: Lab) -> list[Check]:
    """Return those of compiled ones, which take longest to start."""
    named = [
        ("one NCCL rank, CUDA graphs", one_rank_graphs),
        ("one NCCL rank, sharded, compiled", one_rank_sharded_compiled),
        ("two ranks, SyncBatchNorm, compiled", two_ranks_batchnorm_compiled),
    ]
    return [Check(name, "ranks", run, 200) for name, run in named]
