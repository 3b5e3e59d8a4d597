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
    """DDP and SyncBatchNorm in an NCCL group of one rank have the losses of a run without; no gradient is copied."""
    runs = {"ddp": CONVOLUTIONS, "sync_batchnorm": [*CONVOLUTIONS, SYNC]}
    if lab.dry:
        del runs["sync_batchnorm"]  # torch has none for CPUs
    found = several.train(lab, "resnet", runs, *_alone(lab))
    figures = several.compare(found, lab.project("resnet").train(*CONVOLUTIONS), CLOSE)
    copied = [] if lab.dry else [text for text in found["warnings"] if "Grad strides" in text]
    assert not copied, copied[0].splitlines()[0]
    return {**figures}


def one_rank_sharded(lab: Lab) -> Figures:
    """FSDP2 in an NCCL group of one rank has the losses of a run without."""
    runs = {"fsdp": [*ATTENTION, FSDP]}
    if not lab.dry:
        runs["fsdp_blocks"] = [*ATTENTION, FSDP, "--speed.compile=blocks"]
    found = several.train(lab, "vit", runs, *_alone(lab))
    return {**several.compare(found, lab.project("vit").train(*ATTENTION), CLOSE)}


def one_rank_compiled(lab: Lab) -> Figures:
    """The same, compiled: DDP with CUDA graphs, and SyncBatchNorm."""
    lab.needs_cuda()
    runs = {"ddp_reduce_overhead": [*CONVOLUTIONS, *GRAPHS], "sync_batchnorm": [*CONVOLUTIONS, SYNC, GRAPHS[0]]}
    found = several.train(lab, "resnet", runs, "nccl", ["cuda:0"])
    return {**several.compare(found, lab.project("resnet").train(*CONVOLUTIONS), CLOSE)}


def two_ranks(lab: Lab) -> Figures:
    """Two ranks on one device, over gloo, have the losses of one rank with the same global batch."""
    device = "cpu" if lab.dry else "cuda:0"
    half = [*ATTENTION, "--train.micro_batch=16"]
    runs = {"ddp": half, "accumulated": [*half, "--train.accumulate=2", "--train.micro_batch=8"]}
    found = several.train(lab, "vit", runs, "gloo", [device, device])
    return {**several.compare(found, lab.project("vit").train(*ATTENTION, "--train.micro_batch=32"), CLOSE)}


def two_ranks_batchnorm(lab: Lab) -> Figures:
    """The same with SyncBatchNorm, eager and compiled, which one rank alone would not synchronize."""
    lab.needs_cuda()
    half = [*CONVOLUTIONS, "--train.micro_batch=16", SYNC]
    runs = {"sync_batchnorm": half, "compiled": [*half, GRAPHS[0]]}
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
    """Return the checks of this module."""
    named = [
        ("two ranks on one device", two_ranks),
        ("two ranks, SyncBatchNorm", two_ranks_batchnorm),
        ("one NCCL rank", one_rank),
        ("one NCCL rank, sharded", one_rank_sharded),
        ("one NCCL rank, compiled", one_rank_compiled),
        ("two GPUs", two_gpus),
    ]
    return [Check(name, "ranks", run, 120) for name, run in named]
