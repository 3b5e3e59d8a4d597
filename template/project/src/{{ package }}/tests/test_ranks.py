"""Two ranks train as one does, with DDP and FSDP, and any number of ranks can load their checkpoints."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from .. import checkpoint, data, model, speed, techniques
from ..config import Config, parse
from ..distributed import World
from ..techniques import fsdp
from ..train import train
from .conftest import (
    HAS_BLOCKS,
    NO_COMPILE,
    SMALL,
    evaluate_run,
    network,
    read_losses,
    read_rows,
    read_weights,
    run_ranks_in_turn,
    unsupported,
)

CPU = torch.device("cpu")
SHARED = [
    "--log.every=1",
    "--train.steps=6",
    "--train.micro_batch=4",
    "--optim.clip=0.5",
    "--speed.channels_last=false",
]
FSDP = "--dist.strategy=fsdp"
FROZEN = [f'--train.freeze=["{next(name for name, _ in network().named_parameters())}"]', "--train.unfreeze_step=3"]
BY_VALUE = ["--optim.clip=null", "--optim.clip_value=0.001"]
RUNS = {
    "ddp": [],
    "static": ["--dist.static_graph=true"],
    "bf16": ["--dist.bf16_gradients=true"],
    "ddp twice": ["--train.accumulate=2", *BY_VALUE],
    "ddp fp16": ["--speed.precision=fp16"],
    "fsdp": [FSDP, "--train.ema=0.9", "--train.eval_every=3"],
    "fsdp twice": [FSDP, "--train.accumulate=2", *BY_VALUE],
    "fsdp checkpointed": [FSDP, *(["--speed.activation_checkpointing=blocks"] if HAS_BLOCKS else [])],
    "fsdp fp16": [FSDP, "--speed.precision=fp16"],
    "fsdp bf16": [FSDP, "--speed.precision=bf16"],
    "ddp frozen": FROZEN,
    "fsdp frozen": [FSDP, *FROZEN],
}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of these runs on two ranks."""
    folder = tmp_path_factory.mktemp("two")
    every = [[*SHARED, f"--run.name={name}", *options] for name, options in RUNS.items()]
    run_ranks_in_turn(2, every, folder, "overflow", "count:ddp", "count:ddp twice", "buffers:ddp", "observe:fsdp")
    return folder


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same runs on one rank, with twice the accumulation."""
    folder = tmp_path_factory.mktemp("one")
    every = [
        [*SHARED, "--run.name=one", "--train.accumulate=2", "--train.ema=0.9", "--train.eval_every=3"],
        [*SHARED, "--run.name=one twice", "--train.accumulate=4", *BY_VALUE],
        [*SHARED, "--run.name=one fp16", "--train.accumulate=2", "--speed.precision=fp16"],
        [*SHARED, "--run.name=one frozen", "--train.accumulate=2", *FROZEN],
    ]
    run_ranks_in_turn(1, every, folder, "overflow")
    return folder


def refused(folder: Path, name: str) -> bool:
    """Return whether the framework refuses this run, and check its message."""
    why = unsupported(RUNS[name])
    if why:
        assert (folder / f"{name}-refused-0").read_text() == why
    return bool(why)


@pytest.mark.parametrize(
    ("name", "alone", "tolerance"),
    [
        ("ddp", "one", 1e-4),
        ("static", "one", 1e-4),
        ("bf16", "one", 2e-2),
        ("ddp twice", "one twice", 1e-4),
        ("ddp fp16", "one fp16", 5e-3),
        ("fsdp", "one", 1e-4),
        ("fsdp twice", "one twice", 1e-4),
        ("fsdp checkpointed", "one", 1e-4),
        ("fsdp fp16", "one fp16", 5e-3),
        ("fsdp bf16", "one", 3e-2),
        ("ddp frozen", "one frozen", 1e-4),
        ("fsdp frozen", "one frozen", 1e-4),
    ],
)
def test_two_ranks_equal_one(two: Path, one: Path, name: str, alone: str, tolerance: float) -> None:
    if refused(two, name):
        return
    together, single = read_rows(two / name, "train"), read_rows(one / alone, "train")
    assert len(together) == len(single) >= 6
    for ours, theirs in zip(together, single, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=tolerance)
        assert ours["lr"] == theirs["lr"]
    if tolerance < 1e-3:
        norms = [[row["grad_norm"] for row in logged] for logged in (together, single)]
        assert norms[0][:3] == pytest.approx(norms[1][:3], rel=1e-3)
        assert max(norms[0]) > 0.5, "clipping was at work"


@pytest.mark.parametrize("name", ["ddp fp16", "fsdp fp16"])
def test_overflow_is_skipped_by_all_ranks(two: Path, one: Path, name: str) -> None:
    if refused(two, name):
        return
    skipped = [row["skipped_steps"] for row in read_rows(two / name, "train")]
    assert skipped == [row["skipped_steps"] for row in read_rows(one / "one fp16", "train")]
    assert 1 <= skipped[-1] < 5


def test_running_statistics_are_those_of_all_ranks(two: Path) -> None:
    """Of samples from the ranks' distributions in equal parts; what is equal already stays so, to the bit."""
    states = [torch.load(two / f"buffers-{rank}.pt") for rank in (0, 1)]
    means, variances = (torch.stack([before[f"0.running_{it}"] for before, *_ in states]) for it in ("mean", "var"))
    for _, once, twice in states:
        torch.testing.assert_close(once["0.running_mean"], means.mean(0))
        torch.testing.assert_close(once["0.running_var"], variances.mean(0) + means.var(0, correction=0))
        assert (once["0.num_batches_tracked"], once["rank"]) == (1, 0)
        assert all(torch.equal(once[name], twice[name]) for name in once)
    assert all(torch.equal(states[0][1][name], states[1][1][name]) for name in states[0][1] if name != "0.weight")


def test_momentum_counts_the_micro_batches_of_all_ranks(config: Callable[..., Config]) -> None:
    """What is left of the value before, after one update on each of three ranks, or three on one."""
    norms, cfg, world = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2, momentum=None)), config(), World(0, 3, CPU)
    techniques.change_model(norms, norms, cfg, speed.setup(cfg, CPU), world)
    assert [norm.momentum for norm in norms] == [pytest.approx(1 - 0.9**3), None]


def test_gradients_are_reduced_once_per_step(two: Path) -> None:
    counts = {name: int((two / f"{name}-reductions-0").read_text()) for name in ("ddp", "ddp twice")}
    assert counts["ddp twice"] == counts["ddp"] >= 6


def test_sharded_weights_start_as_whole_ones(two: Path) -> None:
    assert read_losses(two / "fsdp")[0] == read_losses(two / "ddp")[0]


def noted(file: Path) -> list[str]:
    return file.read_text().splitlines()


def largest_shard() -> int:
    """Elements of the largest tensor that two ranks need: half of a weight, or a buffer."""
    sharded = [math.ceil(len(weight) / 2) * weight[0].numel() for _, weight in own_weights()]
    return max(sharded + [buffer.numel() for buffer in own_network().buffers()])


def test_no_whole_weight_is_on_a_device(two: Path) -> None:
    """Rank 1 builds nothing on its CPU, so what is there is on its device."""
    assert max(map(int, noted(two / "fsdp-built-1"))) == largest_shard()


def test_each_rank_hashes_what_it_writes(two: Path) -> None:
    assert set(noted(two / "fsdp-hashed-0")) == {"share-00000.pt", "state.pt"}
    assert set(noted(two / "fsdp-hashed-1")) == {"share-00001.pt"}


def test_sharded_ema_equals_one_rank(two: Path, one: Path) -> None:
    ours, theirs = (
        checkpoint.read_state(folder / "checkpoints/step-00000003") for folder in (two / "fsdp", one / "one")
    )
    names = [name for name, weight in own_weights() if weight.ndim >= 2]

    def distance(some: dict[str, Tensor], others: dict[str, Tensor]) -> float:
        """Over all weights, as AdamW's first steps have the size of the rate also where a gradient is mere rounding."""
        return math.hypot(*((some[name] - others[name]).norm().item() for name in names))

    gap = distance(theirs["ema"], theirs["model"])
    assert gap > 1e-3, "the average is not the weights"
    assert distance(ours["ema"], theirs["ema"]) < 0.2 * gap


def own_network() -> nn.Module:
    cfg = parse("test", "", SMALL)
    return model.build(cfg.model, data.load(cfg.data).spec)


def own_weights() -> list[tuple[str, nn.Parameter]]:
    return list(own_network().named_parameters())


def test_bf16_gradients_are_rounded(two: Path) -> None:
    assert read_losses(two / "bf16") != read_losses(two / "ddp")


def test_one_process_evaluates_a_sharded_checkpoint(two: Path, one: Path, short_validation: None) -> None:
    folder = two / "fsdp" / "checkpoints" / "step-00000006"
    assert sorted(file.name for file in folder.glob("*.pt")) == ["share-00000.pt", "share-00001.pt", "state.pt"]
    whole, single = read_weights(two / "fsdp", 6), read_weights(one / "one", 6)
    assert {name: value.shape for name, value in whole.items()} == {name: value.shape for name, value in single.items()}
    assert evaluate_run(two / "fsdp")["loss"] == pytest.approx(read_rows(two / "fsdp", "val")[-1]["loss"], rel=1e-4)


def test_damaged_shard_is_detected(two: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(two / "fsdp", tmp_path / "copy")
    share = copy / "checkpoints" / "step-00000006" / "share-00001.pt"
    share.write_bytes(share.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=r"share-00001.pt does not have its \d+ bytes"):
        assert checkpoint.find(copy) == (copy / "checkpoints" / "step-00000003").resolve()


def test_resume_with_other_ranks_and_strategy(
    two: Path, config: Callable[..., Config], world: World, tmp_path: Path, short_validation: None
) -> None:
    for name in ("whole", "alone", "ddp", "fsdp"):
        shutil.copytree(two / "fsdp", tmp_path / name)
    start = ["--train.steps=6", "--train.ema=0.9", "--train.eval_every=3"]

    def resume(name: str, *options: str) -> list[str]:
        at = tmp_path / name / "checkpoints" / "step-00000003"
        return [*SHARED, *start, f"--run.resume={at}", *options]

    train(config(*resume("alone", "--train.accumulate=2")), world)
    run_ranks_in_turn(2, [resume("ddp"), resume("fsdp", FSDP, "--run.name=fsdp")], tmp_path, "observe:fsdp")
    names = [noted(tmp_path / f"fsdp-hashed-{rank}") for rank in (0, 1)]
    assert names == [["share-00000.pt", "state.pt"] * 2, ["share-00001.pt"] * 2], "read by one rank, written by one"
    assert all(max(map(int, noted(tmp_path / f"fsdp-read-{rank}"))) <= largest_shard() for rank in (0, 1))
    for name in ("alone", "ddp", "fsdp"):
        tolerance = 0.0 if name == "fsdp" else 1e-4
        assert read_losses(tmp_path / name) == pytest.approx(read_losses(tmp_path / "whole"), rel=tolerance, abs=0)
    assert read_rows(tmp_path / "fsdp", "val") == read_rows(tmp_path / "whole", "val"), "of the averages"
    resumed, whole = read_weights(tmp_path / "fsdp", 6), read_weights(tmp_path / "whole", 6)
    assert all(torch.equal(value, whole[name]) for name, value in resumed.items())


REFUSED = [
    (
        ["--dist.static_graph=true", "--train.accumulate=2"],
        "dist.static_graph is true: DDP does not support it with accumulation",
    ),
    (["--dist.sync_batchnorm=true"], "dist.sync_batchnorm is true: torch supports it only on GPUs"),
    ([FSDP, "--optim.name=lamb"], "dist.strategy is fsdp: optim.name=lamb needs whole matrices"),
    ([FSDP, "--optim.name=sgd"], "optim.fused is true: torch has no fused sgd for dist.strategy=fsdp"),
    ([FSDP, "--speed.compile=model"], "use off" if NO_COMPILE else "use speed.compile=blocks"),
    ([FSDP, "--dist.bf16_gradients=true"], "need ddp"),
    (["--loader.workers=200"], "loader.workers is 200: the ranks here share"),
    (["--train.global_batch=17"], "a multiple of 2 ranks x train.micro_batch=4; the nearest is 16 or 24"),
    (["--train.global_batch=3"], "a multiple of 2 ranks x train.micro_batch=4; the nearest is 8"),
    (["--train.global_batch=16", "--train.accumulate=3"], "train.accumulate is 3: train.global_batch=16 makes it 2"),
    (["--speed.step_graph=true"], "speed.step_graph is true: it needs CUDA"),
]


def test_unsupported_on_ranks_is_refused_and_uneven_validation_ends(tmp_path: Path) -> None:
    """Of nine samples in batches of four, one rank has two batches and the other has one."""
    runs = [[*SHARED, f"--run.name={number}", *options] for number, (options, _) in enumerate(REFUSED)]
    uneven = [*SHARED, "--run.name=uneven", "--train.steps=2", FSDP]
    run_ranks_in_turn(2, [*runs, uneven], tmp_path, "nine_samples", "two_cores")
    for number, (options, message) in enumerate(REFUSED):
        for rank in (0, 1):
            assert (unsupported(options) or message) in (tmp_path / f"{number}-refused-{rank}").read_text()
        assert not (tmp_path / str(number)).exists()
    assert len(read_rows(tmp_path / "uneven", "val")) == 1


def test_fsdp_does_not_cast_inputs(config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch) -> None:
    """In bf16, targets that the loss compares with would lose digits."""
    policies: list[MixedPrecisionPolicy] = []
    monkeypatch.setattr(fsdp, "init_device_mesh", lambda *_: None)
    monkeypatch.setattr(fsdp, "fully_shard", lambda part, mesh, mp_policy: policies.append(mp_policy))
    monkeypatch.setattr(fsdp, "_fill", lambda *_: None)
    net = nn.Linear(4, 4)
    fsdp.shard(net, net, config(FSDP), True, World(0, 2, torch.device("cpu")))
    assert {(it.param_dtype, it.cast_forward_inputs) for it in policies} == {(torch.bfloat16, False)}
