"""Each optimizer trains, follows the schedule, and resumes to the same end."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ..components.optimizers import Optimizers, OptimizersConfig
from ..errors import Stopped, UserError
from ..model import build
from .support import CPU, ask_to_stop, at_step, config, equal, load_all, rows, state, train_here

RATES = {"sgd": 1e-2, "adam": 1e-3, "muon": 1e-3, "lamb": 1e-2, "lars": 1.0, "novograd": 1e-3}


def options(name: str) -> list[str]:
    chosen = ["--optimizers.enabled=true", f"--optimizers.name={name}", f"--optim.lr={RATES[name]}"]
    return [*chosen, "--train.steps=6", "--log.every=1"]


def matrices(net: nn.Module) -> list[nn.Parameter]:
    blocks: Any = getattr(net, "blocks", nn.ModuleList())
    return [parameter for parameter in blocks.parameters() if parameter.ndim == 2]


def make(folder: Path, name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the model and its optimizer; one without matrices in `blocks` gets two."""
    cfg = config(folder, "--optim.weight_decay=0.3")
    net: Any = build(cfg.model, load_all(cfg.data)[2])
    if not matrices(net):
        net.blocks.extend([nn.Linear(8, 4), nn.Linear(4, 8)])
    component = Optimizers(OptimizersConfig(enabled=True, name=name), CPU)  # type: ignore[arg-type]
    return net, component.build_optimizer(net, cfg)


@pytest.mark.parametrize("name", RATES)
def test_stopped_run_resumes_to_the_same_end(tmp_path: Path, name: str) -> None:
    cfg = config(tmp_path)
    if name == "muon" and not matrices(build(cfg.model, load_all(cfg.data)[2])):
        with pytest.raises(
            UserError, match=r"optimizers.name is muon: the model's `blocks` have no matrices"
        ):
            train_here(tmp_path, *options(name))
        return
    train_here(tmp_path / "whole", *options(name))
    with at_step(2, ask_to_stop), pytest.raises(Stopped):
        train_here(tmp_path / "stopped", *options(name))
    train_here(tmp_path / "stopped", *options(name))
    assert equal(state(tmp_path / "whole"), state(tmp_path / "stopped"))
    assert rows(tmp_path / "whole", "train") == rows(tmp_path / "stopped", "train")


@pytest.mark.parametrize("name", ["sgd", "muon"])
def test_each_parameter_has_one_rate_and_its_weight_decay(tmp_path: Path, name: str) -> None:
    net, optimizer = make(tmp_path, name)
    found = {
        id(it): group["weight_decay"] for group in optimizer.param_groups for it in group["params"]
    }
    assert len(found) == sum(len(group["params"]) for group in optimizer.param_groups)
    exempt = getattr(net, "no_weight_decay", ())
    for key, parameter in net.named_parameters():
        decays = parameter.ndim >= 2 and key not in exempt
        assert found.pop(id(parameter)) == (0.3 if decays else 0.0), key
    assert not found
    assert {group["lr"] for group in optimizer.param_groups} == {config(tmp_path).optim.lr}


def test_muon_updates_the_matrices_of_the_blocks(tmp_path: Path) -> None:
    net, optimizer = make(tmp_path, "muon")
    hidden = {id(parameter) for parameter in optimizer.param_groups[0]["params"]}
    assert hidden == {id(parameter) for parameter in matrices(net)}
    before = [parameter.detach().clone() for parameter in matrices(net)]
    for parameter in net.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    rate = optimizer.param_groups[0]["lr"]
    for old, parameter in zip(before, matrices(net), strict=True):
        step = (parameter - old * (1 - 0.3 * rate)).square().mean().sqrt() / rate
        # Liu et al. 2025, section 2.2: that of AdamW's steps; singular values are about 1 only.
        assert 0.1 < step.item() < 0.3
