"""Each optimizer trains, follows the schedule, and resumes to the same end."""

from pathlib import Path

import pytest
import torch

from ..components.optimizers import Optimizers, OptimizersConfig
from ..contracts import blocks
from ..errors import Stopped, UserError
from ..model import build
from .support import CPU, ask_to_stop, at_step, config, equal, load_all, rows, state, train_here

RATES = {
    "sgd": 1e-2,
    "adam": 1e-3,
    "muon": 1e-3,
    "lamb": 1e-2,
    "lars": 1.0,
    "novograd": 1e-3,
}


@pytest.mark.parametrize("name", RATES)
def test_stopped_run_resumes_to_the_same_end(
    tmp_path: Path,
    name: str,
) -> None:
    options = ["--optimizers.enabled=true", f"--optimizers.name={name}"]
    options += [f"--optim.lr={RATES[name]}", "--train.steps=6", "--log.every=1"]
    try:
        train_here(tmp_path / "whole", *options)
    except UserError as error:
        if "have no matrices" not in str(error):
            raise
        pytest.skip(f"needs another model: {error}")
    with at_step(2, ask_to_stop), pytest.raises(Stopped):
        train_here(tmp_path / "stopped", *options)
    train_here(tmp_path / "stopped", *options)
    assert equal(state(tmp_path / "whole"), state(tmp_path / "stopped"))
    assert rows(tmp_path / "whole", "train") == rows(tmp_path / "stopped", "train")


@pytest.mark.parametrize("name", ["sgd", "muon"])
def test_each_parameter_has_one_rate_and_its_weight_decay(
    tmp_path: Path,
    name: str,
) -> None:
    cfg = config(tmp_path, "--optim.weight_decay=0.3")
    net = build(cfg.model, load_all(cfg.data)[2])
    blocks(net).append(torch.nn.Linear(8, 4))
    component = Optimizers(OptimizersConfig(enabled=True, name=name), CPU)  # type: ignore[arg-type]
    decay = {}
    for group in component.build_optimizer(net, cfg).param_groups:
        assert group["lr"] == cfg.optim.lr
        for weight in group["params"]:
            assert weight not in decay
            decay[weight] = group["weight_decay"]
    for key, weight in net.named_parameters():
        decays = weight.ndim >= 2 and key not in getattr(net, "no_weight_decay", ())
        assert decay.pop(weight) == (0.3 if decays else 0.0), key
    assert not decay
