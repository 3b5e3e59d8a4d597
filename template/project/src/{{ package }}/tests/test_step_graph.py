"""What a CUDA graph cannot capture is refused, and a captured step has the same losses."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ..config import Config
from ..distributed import World
from ..errors import UserError
from ..techniques import step_graph
from ..train import train
from .conftest import read_losses, unsupported

GPU = World(0, 1, torch.device("cuda", 0))
FIT = ["--speed.step_graph=true", "--optim.cycle_momentum=false"]


def test_step_graph_accepts_supported_options(config: Callable[..., Config]) -> None:
    step_graph.check(config(*FIT), GPU, "bf16")
    step_graph.check(config("--speed.step_graph=true", "--optim.schedule=cosine"), GPU, "fp32")


@pytest.mark.parametrize(
    ("options", "precision", "message"),
    [
        (["--optim.cycle_momentum=true"], "bf16", "set optim.cycle_momentum to false"),
        ([], "fp16", "fp16 synchronizes with the host"),
        ([], "fp8", "fp8 synchronizes with the host"),
        (["--optim.name=sgd"], "bf16", "it captures fused adamw"),
        (["--optim.fused=false"], "bf16", "it captures fused adamw"),
        (["--speed.activation_checkpointing=blocks"], "bf16", "set speed.activation_checkpointing to none"),
        (["--speed.compile=model", "--speed.compile_mode=reduce-overhead"], "bf16", "use default"),
        (["--debug.nan=true"], "bf16", "set them to false"),
        (["--debug.anomaly=true"], "bf16", "set them to false"),
    ],
)
def test_step_graph_refuses_unsupported_options(
    config: Callable[..., Config], options: list[str], precision: str, message: str
) -> None:
    with pytest.raises(UserError, match=message) as refused:
        step_graph.check(config(*FIT, *options), GPU, precision)
    assert str(refused.value).startswith("speed.step_graph is true: ")


def test_step_graph_refuses_ranks_and_cpu(config: Callable[..., Config]) -> None:
    with pytest.raises(UserError, match="it is for one process, and there are 2"):
        step_graph.check(config(*FIT), World(0, 2, torch.device("cuda", 0)), "bf16")
    with pytest.raises(UserError, match="it needs CUDA, and this run is on cpu"):
        step_graph.check(config(*FIT), World(0, 1, torch.device("cpu")), "bf16")


@pytest.mark.gpu
@pytest.mark.parametrize("accumulate", [1, 2])
def test_captured_step_has_the_same_losses(
    config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accumulate: int
) -> None:
    replayed: list[int] = []
    replay = torch.cuda.CUDAGraph.replay

    def count(graph: torch.cuda.CUDAGraph) -> None:
        replayed.append(1)
        replay(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", count)
    shared = ["--run.device=cuda", "--train.steps=20", "--log.every=1", f"--train.accumulate={accumulate}"]
    if unsupported(FIT):
        with pytest.raises(UserError, match=re.escape(unsupported(FIT))):
            train(config("--run.name=on", *shared, *FIT), GPU)
        return
    train(config("--run.name=off", *shared, "--optim.cycle_momentum=false"), GPU)
    assert replayed == []
    train(config("--run.name=on", *shared, *FIT), GPU)
    assert len(replayed) == 20 * (accumulate + 1)
    assert read_losses(tmp_path / "on") == pytest.approx(read_losses(tmp_path / "off"), rel=1e-3)
