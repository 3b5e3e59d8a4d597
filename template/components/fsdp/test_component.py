"""FSDP: two ranks against one process without it; checkpoints in shards.

Two processes do all runs.
"""

from pathlib import Path

import pytest
import torch

from .. import checkpoint
from ..distributed import World
from ..errors import Stopped, UserError
from ..evaluate import evaluate_run
from . import support
from .support import CPU, equal, parameters, rows, state, train_here

SAME = ("--train.global_batch_size=16", "--optim.eps=1e-2")
FSDP = (*SAME, "--fsdp.enabled=true")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fsdp")
    train_here(folder / "one", *SAME)
    assert support.run_group(train_on_ranks, folder, ranks=2) == [0, 0]
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the newest weights."""
    newest = checkpoint.newest(folder / "first/checkpoints")
    assert newest is not None
    return parameters(torch.load(newest / "weights.pt", weights_only=True)["model"])


def test_two_ranks_train_as_one_process_without_it(runs: Path) -> None:
    expected = parameters(state(runs / "one")["model"])
    torch.testing.assert_close(weights(runs / "sharded"), expected, rtol=1e-3, atol=1e-5)
    losses = [row["loss"] for row in rows(runs / "one", "train")]
    sharded = [row["loss"] for row in rows(runs / "sharded", "train")]
    assert sharded == pytest.approx(losses, abs=1e-4)


def test_each_rank_saves_its_shards(runs: Path) -> None:
    folder = runs / "sharded/first/checkpoints/step-00000012"
    sizes = [file.stat().st_size for file in folder.glob("__*_0.distcp")]
    assert len(sizes) == 2
    assert max(sizes) < 0.75 * sum(sizes)


def test_stopped_run_resumes_to_the_same_end(runs: Path) -> None:
    assert (runs / "stopped.txt").read_text() == "stopped at step 5"
    assert equal(weights(runs / "sharded"), weights(runs / "stopped"))


def test_one_process_evaluates_the_weights(runs: Path) -> None:
    best = min(row["loss"] for row in rows(runs / "sharded", "val"))
    with support.few_samples():
        results = evaluate_run(runs / "sharded/first", CPU)
    assert results["loss"] == pytest.approx(best, rel=1e-4)


def test_one_process_and_another_kind_of_checkpoint_are_refused(runs: Path) -> None:
    with pytest.raises(UserError, match="fsdp.enabled needs several ranks: start with torchrun"):
        train_here(runs / "sharded", *FSDP)
    assert "was saved without fsdp: use another run.name" in (runs / "refused.txt").read_text()


def train_on_ranks(folder: Path, world: World) -> None:
    train_here(folder / "sharded", *FSDP, world=world)
    try:
        with support.at_step(4, support.ask_to_stop):
            train_here(folder / "stopped", *FSDP, world=world)
    except Stopped as stopped:
        (folder / "stopped.txt").write_text(str(stopped).split(":")[0])
    train_here(folder / "stopped", *FSDP, world=world)
    try:
        train_here(folder / "one", *FSDP, world=world)
    except UserError as error:
        (folder / "refused.txt").write_text(str(error))
