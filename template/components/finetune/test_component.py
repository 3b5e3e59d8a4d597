"""Fine-tuning: what is loaded, what stays frozen, and the learning rate of each layer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from .. import checkpoint
from ..errors import Stopped, UserError
from .support import ask_to_stop, at_step, equal, state, train_here

ON = ("--finetune.enabled=true", "--train.steps=4", "--optim.lr=1e-2")


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained")
    train_here(folder, "--train.steps=4", "--run.seed=7")
    return folder / "first"


def test_run_starts_with_the_weights_that_fit(
    pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = checkpoint.load_weights(pretrained)
    name = next(name for name, value in weights.items() if value.ndim >= 2)
    file = tmp_path / "weights.pt"
    given = weights | {name: torch.ones(3, 3), "more": torch.ones(1)}
    torch.save(
        {"state_dict": given},
        file,
    )
    options = (*ON, f"--finetune.weights={file}", "--train.steps=1", "--optim.lr=1e-12")
    train_here(tmp_path, *options)
    said = capsys.readouterr().out
    assert f"1 of another shape or type ({name}), 1 not in the model (more)\n" in said
    model = state(tmp_path)["model"]
    assert model[name].shape == weights[name].shape
    for other, value in model.items():
        if other != name and "running" not in other and "batches" not in other:
            torch.testing.assert_close(
                value,
                weights[other],
                rtol=0,
                atol=1e-6,
            )


def test_resumed_run_needs_no_file(
    pretrained: Path,
    tmp_path: Path,
) -> None:
    file = tmp_path / "weights.pt"
    options = (*ON, f"--finetune.weights={file}")
    torch.save(
        checkpoint.load_weights(pretrained),
        file,
    )
    train_here(tmp_path / "whole", *options)
    with at_step(1, ask_to_stop), pytest.raises(Stopped):
        train_here(tmp_path / "stopped", *options)
    file.unlink()
    train_here(tmp_path / "stopped", *options)
    assert equal(state(tmp_path / "whole"), state(tmp_path / "stopped"))
    with pytest.raises(UserError, match="there is no such file or run, or folder with model.safe"):
        train_here(tmp_path, *options)


def saved(
    folder: Path,
    step: int,
) -> dict[str, Tensor]:
    """Return the weights after a step."""
    file = folder / f"first/checkpoints/step-{step:08d}/state.pt"
    return dict(torch.load(file, weights_only=True)["model"])


def test_frozen_part_does_not_change_until_the_step(
    pretrained: Path,
    tmp_path: Path,
) -> None:
    part = next(iter(checkpoint.load_weights(pretrained))).split(".")[0]
    options = (f'--finetune.freeze=["{part}"]', "--finetune.unfreeze_at=3")
    train_here(
        tmp_path,
        *ON,
        *options,
        "--run.keep=9",
        "--train.eval_every=1",
    )
    frozen: list[dict[str, Any]] = []
    for step in (1, 3, 4):
        weights = saved(tmp_path, step)
        own = [name for name in weights if name.split(".")[0] == part]
        frozen.append({name: weights[name] for name in own})
    assert equal(frozen[0], frozen[1])
    assert not equal(frozen[1], frozen[2])


def test_pattern_without_a_match_and_nothing_to_train_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="finetune.freeze has 'nowhere', but no parameter has such"):
        train_here(tmp_path, *ON, '--finetune.freeze=["nowhere"]')
    with pytest.raises(UserError, match="nothing is left to train"):
        train_here(tmp_path, *ON, '--finetune.freeze=["*"]')


def test_learning_rate_falls_by_a_factor_for_each_block(tmp_path: Path) -> None:
    groups: list[dict[str, Any]] = []
    with at_step(1, lambda optimizer: groups.extend(optimizer.param_groups)):
        train_here(tmp_path, *ON, "--finetune.lr_decay=0.5")
    scales = {group["lr_scale"] for group in groups}
    assert {0.5, 1.0} <= scales
    assert len({group["lr"] / group["lr_scale"] for group in groups}) == 1
