"""Low-rank adapters: what is trained, and that merged weights compute the same."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from .. import data, loader
from ..components.lora import merged
from ..errors import UserError
from ..evaluate import evaluate_run, load_run
from ..loss import compute_loss
from ..model import build
from . import support
from .support import CPU, few_samples, rows, state, train_here

ON = ["--lora.enabled=true", "--lora.rank=2", "--optim.lr=1e-2"]
ON += ["--train.steps=6", "--train.eval_every=3"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora")
    try:
        train_here(folder, *ON)
    except UserError as error:
        if "whose weight is its own" not in str(error):
            raise
        pytest.skip(f"needs another model: {error}")
    return folder


def test_only_adapters_are_trained(run: Path) -> None:
    cfg = support.config(run)
    torch.manual_seed(cfg.run.seed)
    start = build(cfg.model, support.load_all(cfg.data)[2]).state_dict()
    adapters = {}
    for name, value in state(run)["model"].items():
        if ".lora_" in name:
            adapters[name] = value
        else:
            assert torch.equal(value, start[name.replace(".base_layer.", ".")]), name
    assert any(value.any() for name, value in adapters.items() if ".lora_B." in name)
    assert len(state(run)["optimizer"]["state"]) == len(adapters)


def test_evaluation_has_the_adapters_and_merged_weights_compute_the_same(run: Path) -> None:
    with few_samples():
        results = evaluate_run(run / "first", CPU)
        cfg, net, val_set, spec = load_run(run / "first", CPU.device)
    assert results["loss"] == min(row["loss"] for row in rows(run, "val"))
    samples = next(iter(loader.Loader(val_set, [[0, 1, 2, 3]], cfg.loader, CPU)))
    batch = data.Prepare(spec, cfg.data)(samples, False, torch.Generator().manual_seed(0))

    def loss(model: torch.nn.Module) -> Tensor:
        torch.manual_seed(0)
        return compute_loss(model.eval(), batch)[0]

    expected = loss(net)
    plain = build(cfg.model, spec)
    plain.load_state_dict(merged(net).state_dict())
    torch.testing.assert_close(loss(plain), expected, rtol=1e-4, atol=1e-5)


def test_pattern_without_a_match_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"lora.train has 'nowhere', which matches none of "):
        train_here(tmp_path, *ON, '--lora.train=["nowhere"]')
