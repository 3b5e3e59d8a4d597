"""Options of DistributedDataParallel on two ranks, all runs started by one torchrun; and what is refused."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..components.ddp_options import DdpOptions, DdpOptionsConfig
from ..data import DataConfig
from ..distributed import World, init
from ..errors import UserError
from ..model import ModelConfig, build
from .support import CPU, config, equal, load_all, parameters, rows, run_program, state, train_here

SHORT = ("--train.steps=3", "--train.eval_every=3", "--log.every=1")
ENABLED = "--ddp_options.enabled=true"
RUNS = {
    "ddp": (),
    "none": (ENABLED,),
    "static": (ENABLED, "--ddp_options.static_graph=true"),
    "bf16": (ENABLED, "--ddp_options.bf16_gradients=true"),
}
REFUSED = {
    "sync": (ENABLED, "--ddp_options.sync_batchnorm=true"),
    "accumulate": (ENABLED, "--ddp_options.static_graph=true", "--train.accumulate=2"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ddp_options")
    run_program("test_ddp_options", folder, ranks=2)
    return folder


def test_static_graph_trains_as_without(runs: Path) -> None:
    for name in ("none", "static"):
        assert rows(runs / name, "train") == rows(runs / "ddp", "train")
        assert equal(
            parameters(state(runs / name)["model"]), parameters(state(runs / "ddp")["model"])
        )


def test_gradients_in_bf16_are_rounded(runs: Path) -> None:
    for row, other in zip(rows(runs / "bf16", "train"), rows(runs / "ddp", "train"), strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=0.02)
        assert row["grad_norm"] == pytest.approx(other["grad_norm"], rel=0.02)
        assert row["grad_norm"] != other["grad_norm"]


def test_unsupported_options_are_one_line(runs: Path) -> None:
    assert (
        "sync_batchnorm is True: torch synchronizes BatchNorm on GPUs only"
        in (runs / "sync.txt").read_text()
    )
    assert (
        "static_graph is True: DDP does not support it with"
        in (runs / "accumulate.txt").read_text()
    )


def test_one_process_needs_no_ddp(tmp_path: Path) -> None:
    component = DdpOptions(DdpOptionsConfig(enabled=True, sync_batchnorm=True), CPU)
    assert component.parallelize(nn.Linear(1, 1), config(tmp_path)) is None


def test_synchronized_batchnorm_has_the_weights_and_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the device and DDP replaced, as two GPUs are needed."""
    model: nn.Module = build(ModelConfig(), load_all(DataConfig())[2])
    expected, wrapped = dict(model.named_parameters()), list[nn.Module]()
    norms = sum(isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) for module in model.modules())
    monkeypatch.setattr(
        DistributedDataParallel, "__init__", lambda self, module, **_: wrapped.append(module)
    )
    monkeypatch.setattr(nn.Module, "to", lambda self, *_, **options: self)
    world = World(0, 2, torch.device("cuda", 0))
    DdpOptions(DdpOptionsConfig(enabled=True, sync_batchnorm=True), world).parallelize(
        model, config(tmp_path)
    )
    assert wrapped == [model]
    assert sum(isinstance(module, nn.SyncBatchNorm) for module in model.modules()) == norms
    found = dict(model.named_parameters())
    assert found.keys() == expected.keys()
    assert all(found[name] is expected[name] for name in expected)


def _train(folder: Path, world: World) -> None:
    for name, options in RUNS.items():
        train_here(folder / name, *SHORT, *options, world=world)
    for name, options in REFUSED.items():
        try:
            train_here(folder / name, *SHORT, *options, world=world)
        except UserError as error:
            (folder / f"{name}.txt").write_text(str(error))


if __name__ == "__main__":
    with init("cpu") as joined:
        _train(Path(sys.argv[1]), joined)
