"""FSDP: two ranks against one process without it; checkpoints in shards.

One torchrun starts all runs.
"""

import sys
from pathlib import Path

import pytest
import torch

from .. import checkpoint
from ..distributed import World, init
from ..errors import Stopped, UserError
from ..evaluate import evaluate_run
from .support import (
    CPU,
    ask_to_stop,
    at_step,
    equal,
    few_samples,
    parameters,
    rows,
    run_program,
    state,
    train_here,
)

SAME = ("--train.global_batch=16", "--optim.eps=1e-4")
FSDP = (*SAME, "--fsdp.enabled=true")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fsdp")
    train_here(folder / "one", *SAME)
    run_program("test_fsdp", folder, ranks=2)
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the newest weights."""
    found = checkpoint.newest(folder / "first/checkpoints")
    assert found is not None
    return parameters(torch.load(found / "weights.pt", weights_only=True)["model"])


def test_two_ranks_train_as_one_process_without_it(runs: Path) -> None:
    found = weights(runs / "sharded")
    expected = state(runs / "one")["model"]
    torch.testing.assert_close(
        found, {name: expected[name] for name in found}, rtol=1e-3, atol=1e-5
    )
    for row, other in zip(
        rows(runs / "one", "train"), rows(runs / "sharded", "train"), strict=True
    ):
        assert row["loss"] == pytest.approx(other["loss"], abs=1e-4)
        assert row["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)


def test_each_rank_saves_its_shards(runs: Path) -> None:
    folder = runs / "sharded/first/checkpoints/step-00000012"
    sizes = [(folder / f"__{rank}_0.distcp").stat().st_size for rank in (0, 1)]
    parameters = sum(value.numel() for value in weights(runs / "sharded").values())
    assert max(sizes) < 0.75 * sum(sizes)
    assert sum(sizes) > 3 * 4 * parameters, "weights and two moments"


def test_stopped_run_resumes_to_the_same_end(runs: Path) -> None:
    assert (runs / "stopped.txt").read_text() == "stopped at step 5"
    assert equal(weights(runs / "sharded"), weights(runs / "stopped"))
    assert rows(runs / "stopped", "train")[-1] == rows(runs / "sharded", "train")[-1]


def test_one_process_evaluates_the_weights(runs: Path) -> None:
    best = min(rows(runs / "sharded", "val"), key=lambda row: row["loss"])
    record = runs / "sharded/first/config.json"
    assert '"enabled": true' in record.read_text()
    with few_samples():
        results = evaluate_run(runs / "sharded/first", CPU)
    assert results["loss"] == pytest.approx(best["loss"], rel=1e-4)


def test_one_process_is_refused(runs: Path) -> None:
    with pytest.raises(UserError, match="fsdp.enabled needs several ranks: start with torchrun"):
        train_here(runs / "sharded", *FSDP)


def test_checkpoint_of_the_other_kind_is_refused(runs: Path) -> None:
    assert "was saved without fsdp: use another run.name" in (runs / "refused.txt").read_text()


def _train(folder: Path, world: World) -> None:
    train_here(folder / "sharded", *FSDP, world=world)
    try:
        with at_step(4, ask_to_stop):
            train_here(folder / "stopped", *FSDP, world=world)
    except Stopped as stopped:
        (folder / "stopped.txt").write_text(str(stopped).split(":")[0])
    train_here(folder / "stopped", *FSDP, world=world)
    try:
        train_here(folder / "one", *FSDP, "--train.steps=13", world=world)
    except UserError as error:
        (folder / "refused.txt").write_text(str(error))


if __name__ == "__main__":
    with init("cpu") as joined:
        _train(Path(sys.argv[1]), joined)
