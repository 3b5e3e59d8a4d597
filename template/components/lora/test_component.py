"""Low-rank adapters: what is trained, and that merged weights compute the same."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from .. import checkpoint, data, loader
from ..components.lora import merged
from ..errors import Stopped, UserError
from ..evaluate import evaluate_run, load_run
from ..metrics import compute_loss
from ..model import build
from .support import (
    CPU,
    ask_to_stop,
    at_step,
    config,
    equal,
    few_samples,
    load_all,
    rows,
    state,
    train_here,
)

ON = (
    "--lora.enabled=true",
    "--lora.rank=2",
    "--train.steps=6",
    "--train.eval_every=3",
    "--optim.lr=1e-2",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora")
    try:
        train_here(folder, *ON)
    except UserError as error:
        if "whose weight is its own" not in str(error):
            raise
        pytest.skip(str(error))
    return folder


def initial(folder: Path) -> dict[str, Tensor]:
    """Return the weights before training."""
    cfg = config(folder)
    torch.manual_seed(cfg.run.seed)
    return dict(build(cfg.model, load_all(cfg.data)[2]).state_dict())


def test_only_adapters_are_trained(run: Path) -> None:
    found = state(run)["model"]
    start, adapters = initial(run), {name for name in found if ".lora_" in name}
    plain = {
        name.replace(".base_layer.", "."): found[name] for name in found if name not in adapters
    }
    assert equal(plain, start)
    assert any(found[name].any() for name in adapters if ".lora_B." in name), "they start at zero"
    saved = [
        value for entry in state(run)["optimizer"]["state"].values() for value in entry.values()
    ]
    assert max(value.numel() for value in saved) <= max(found[name].numel() for name in adapters)


def test_evaluation_has_the_adapters_and_merged_weights_compute_the_same(run: Path) -> None:
    best = min(rows(run, "val"), key=lambda row: row["loss"])
    with few_samples():
        assert evaluate_run(run / "first", CPU)["loss"] == best["loss"]
        cfg, net, val_set, spec = load_run(run / "first", CPU.device)
    plain = build(cfg.model, spec).eval()
    samples = next(iter(loader.Loader(val_set, [[0, 1, 2, 3]], cfg.loader, CPU)))
    batch = data.Prepare(spec, cfg.data)(samples, False, torch.Generator().manual_seed(0))
    losses = []
    for _ in range(2):
        torch.manual_seed(0)
        losses.append(compute_loss(net.eval(), batch)[0])
        weights = merged(net).state_dict()
    plain.load_state_dict(weights)
    torch.manual_seed(0)
    assert compute_loss(plain, batch)[0] == losses[1]
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-5)
    torch.manual_seed(0)
    plain.load_state_dict(initial(run))
    assert compute_loss(plain, batch)[0] != losses[1]


def test_stopped_run_resumes_to_the_same_end(run: Path, tmp_path: Path) -> None:
    with at_step(3, ask_to_stop), pytest.raises(Stopped):
        train_here(tmp_path, *ON)
    train_here(tmp_path, *ON)
    assert equal(state(run), state(tmp_path))
    assert rows(run, "val") == rows(tmp_path, "val")


def test_named_modules_are_trained_in_full(run: Path, tmp_path: Path) -> None:
    part = next(iter(initial(run))).split(".")[0]
    train_here(tmp_path, *ON, f'--lora.train=["{part}"]')
    start, found = initial(run), checkpoint.load_weights(tmp_path / "first")
    assert any(
        not torch.equal(found[name], start[name]) for name in start if name.split(".")[0] == part
    )


def test_pattern_without_a_match_is_one_line(run: Path, tmp_path: Path) -> None:
    for key in ("target", "train"):
        with pytest.raises(UserError, match=f"lora.{key} has 'nowhere', which matches none of "):
            train_here(tmp_path, *ON, f'--lora.{key}=["nowhere"]')
