"""Options of DistributedDataParallel on two ranks, which do all runs."""

from pathlib import Path

import pytest
import torch
from torch import nn

from ..components import ddp_options
from ..components.ddp_options import DdpOptions, DdpOptionsConfig
from ..distributed import World
from ..errors import UserError
from .support import config, equal, parameters, rows, run_group, state, train_here

SHORT = ("--train.steps=3", "--train.eval_every=3", "--log.every=1")
ENABLED = "--ddp_options.enabled=true"
RUNS = {
    "ddp": (),
    "static": (ENABLED, "--ddp_options.static_graph=true"),
    "bf16": (ENABLED, "--ddp_options.bf16_gradients=true"),
}
REFUSED = {
    "sync": (ENABLED, "--ddp_options.sync_batchnorm=true"),
    "accumulate": (
        ENABLED,
        "--ddp_options.static_graph=true",
        "--train.gradient_accumulation_steps=2",
    ),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ddp_options")
    assert run_group(train_on_ranks, folder, ranks=2) == [0, 0]
    return folder


def test_static_graph_trains_as_without(runs: Path) -> None:
    assert rows(runs / "static", "train") == rows(runs / "ddp", "train")
    expected = parameters(state(runs / "ddp")["model"])
    assert equal(parameters(state(runs / "static")["model"]), expected)


def test_gradients_in_bf16_are_rounded(runs: Path) -> None:
    norms = [row["grad_norm"] for row in rows(runs / "ddp", "train")]
    rounded = [row["grad_norm"] for row in rows(runs / "bf16", "train")]
    assert rounded == pytest.approx(norms, rel=0.02)
    assert rounded != norms


def test_unsupported_options_are_one_line(runs: Path) -> None:
    message = "sync_batchnorm is True: torch synchronizes BatchNorm on GPUs only"
    assert message in (runs / "sync.txt").read_text()
    message = "static_graph is True: DDP does not support it with"
    assert message in (runs / "accumulate.txt").read_text()


def test_synchronized_batchnorm_has_the_weights_and_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the device and DDP replaced, as two GPUs are needed."""
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    before = dict(model.named_parameters())
    monkeypatch.setattr(ddp_options, "data_parallel", lambda net, *_, **__: net)
    world = World(0, 2, torch.device("cuda", 0))
    component = DdpOptions(DdpOptionsConfig(enabled=True, sync_batchnorm=True), world)
    component.parallelize(model, config(tmp_path), world)
    assert type(model[1]) is nn.SyncBatchNorm
    after = dict(model.named_parameters())
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)


def train_on_ranks(folder: Path, world: World) -> None:
    for name, options in RUNS.items():
        train_here(folder / name, *SHORT, *options, world=world)
    for name, options in REFUSED.items():
        try:
            train_here(folder / name, *SHORT, *options, world=world)
        except UserError as error:
            (folder / f"{name}.txt").write_text(str(error))
