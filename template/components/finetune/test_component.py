"""Fine-tuning: what is loaded, what stays frozen, and the learning rate of each layer."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from .. import checkpoint
from ..errors import Stopped, UserError
from ..evaluate import evaluate_run
from .support import CPU, ask_to_stop, at_step, equal, few_samples, rows, state, train_here

ON = ("--finetune.enabled=true", "--train.steps=4", "--optim.lr=1e-2")


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained")
    train_here(folder, "--train.steps=4", "--run.seed=7")
    return folder / "first"


def started(folder: Path, *options: str) -> dict[str, Tensor]:
    """Return the weights after a step that changes almost nothing."""
    train_here(folder, *ON, "--train.steps=1", "--optim.lr=1e-12", *options)
    return dict(state(folder)["model"])


@pytest.mark.parametrize("kind", ["run", "file", "safetensors", "checkpoint"])
def test_run_starts_with_the_weights(
    pretrained: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import save_file

    weights = checkpoint.load_weights(pretrained)
    torch.save(
        {"state_dict": {f"module.{name}": value for name, value in weights.items()}},
        tmp_path / "file.pt",
    )
    save_file(
        {name: value.clone() for name, value in weights.items()}, tmp_path / "model.safetensors"
    )
    saved = checkpoint.newest(pretrained / "checkpoints")
    source = {
        "run": pretrained,
        "file": tmp_path / "file.pt",
        "safetensors": tmp_path,
        "checkpoint": saved,
    }[kind]
    file = source / "state.pt" if kind == "checkpoint" and source else source
    found = started(
        tmp_path,
        f"--finetune.weights={file}",
        f"--finetune.strip_prefix={'module.' * (kind == 'file')}",
    )
    trained = {name for name in found if "running" not in name and "batches" not in name}
    assert max((found[name] - weights[name]).abs().max().item() for name in trained) < 1e-6
    assert (
        f"finetune: loaded {len(weights)} of {len(weights)} tensors from {file}\n"
        in capsys.readouterr().out
    )


def test_resumed_run_and_evaluation_need_no_file(pretrained: Path, tmp_path: Path) -> None:
    options = (*ON, f"--finetune.weights={tmp_path / 'weights.pt'}")
    torch.save(checkpoint.load_weights(pretrained), tmp_path / "weights.pt")
    train_here(tmp_path / "whole", *options)
    with at_step(1, ask_to_stop), pytest.raises(Stopped):
        train_here(tmp_path / "stopped", *options)
    (tmp_path / "weights.pt").unlink()
    train_here(tmp_path / "stopped", *options)
    assert equal(state(tmp_path / "whole"), state(tmp_path / "stopped"))
    with few_samples():
        assert (
            evaluate_run(tmp_path / "stopped/first", CPU)["loss"]
            == rows(tmp_path / "whole", "val")[-1]["loss"]
        )
    with pytest.raises(
        UserError, match="there is no such file or run, or folder with model.safetensors"
    ):
        train_here(tmp_path, *options)


def test_weights_of_another_shape_stay_as_initialized(
    pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = checkpoint.load_weights(pretrained)
    name = next(name for name, value in weights.items() if value.ndim >= 2)
    torch.save(weights | {name: torch.ones(3, 3), "more": torch.ones(1)}, tmp_path / "weights.pt")
    found = started(tmp_path, f"--finetune.weights={tmp_path / 'weights.pt'}")
    said = re.search("finetune: .*", capsys.readouterr().out)
    assert said is not None
    assert said[0].endswith(f"1 of another shape or type ({name}), 1 not in the model (more)")
    assert found[name].shape == weights[name].shape
    torch.save({"more": torch.ones(1)}, tmp_path / "weights.pt")
    with pytest.raises(UserError, match="nothing fits .it has more, and the model "):
        train_here(
            tmp_path, *ON, f"--finetune.weights={tmp_path / 'weights.pt'}", "--run.name=second"
        )


def saved(folder: Path, step: int) -> dict[str, Tensor]:
    """Return the weights after a step."""
    file = folder / f"first/checkpoints/step-{step:08d}/state.pt"
    return dict(torch.load(file, weights_only=True)["model"])


@pytest.mark.parametrize("until", ["null", "3"])
def test_frozen_part_does_not_change(tmp_path: Path, until: str) -> None:
    train_here(tmp_path, *ON, "--train.steps=1", "--finetune.enabled=false")
    part = next(iter(state(tmp_path)["model"])).split(".")[0]
    options = (*ON, "--run.keep=9", "--train.eval_every=1", f"--finetune.unfreeze_at={until}")
    train_here(tmp_path / "frozen", *options, f'--finetune.freeze=["{part}"]')
    weights = [saved(tmp_path / "frozen", step) for step in (1, 2, 3, 4)]
    frozen = [{name: it[name] for name in it if name.split(".")[0] == part} for it in weights]
    assert equal(frozen[0], frozen[1])
    assert equal(frozen[1], frozen[2])
    assert equal(frozen[2], frozen[3]) == (until == "null")
    assert not equal(weights[0], weights[1])


def test_pattern_without_a_match_and_nothing_to_train_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"finetune.freeze has 'nowhere', but no parameter has such a name"
    ):
        train_here(tmp_path, *ON, '--finetune.freeze=["nowhere"]')
    with pytest.raises(UserError, match="nothing is left to train"):
        train_here(tmp_path, *ON, '--finetune.freeze=["*"]')


def test_learning_rate_falls_by_a_factor_for_each_block(tmp_path: Path) -> None:
    groups: list[dict[str, Any]] = []
    with at_step(1, lambda optimizer: groups.extend(optimizer.param_groups)):
        train_here(tmp_path, *ON, "--finetune.lr_decay=0.5")
    assert len({group["lr"] / group["lr_scale"] for group in groups}) == 1
    depth = max(-math.log2(group["lr_scale"]) for group in groups)
    assert {group["lr_scale"] for group in groups} >= {
        0.5**number for number in range(1, int(depth) + 1)
    }
    found = [id(parameter) for group in groups for parameter in group["params"]]
    train_here(tmp_path, *ON, "--finetune.lr_decay=0.5", "--train.steps=6")
    assert len({*found}) == len(found)
