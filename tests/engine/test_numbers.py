"""The schedule, the optimizer, clipping and precision against torch's own."""

import itertools
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from engine import MakePackage, Package, equal, overwriting, rows, saved
from torch import nn

TOTALS = [10, 37, 1000]
SCHEDULES = list(itertools.product(TOTALS, [0.2, 0.4]))


@pytest.mark.parametrize(("total", "pct_start"), SCHEDULES)
def test_onecycle_equals_torch(p: Package, total: int, pct_start: float) -> None:
    cfg = p.config.OptimConfig(lr=0.3, pct_start=pct_start)
    schedule = p.optim.OneCycle(cfg, SimpleNamespace(total_steps=total, global_batch_size=64))
    ours, theirs = (torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=0.3) for _ in range(2))
    reference = torch.optim.lr_scheduler.OneCycleLR(
        theirs, 0.3, total, pct_start=pct_start, div_factor=10
    )
    for step in range(total):
        lr = schedule.set(ours, step)
        assert (
            lr
            == ours.param_groups[0]["lr"]
            == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-9)
        )
        assert ours.param_groups[0]["betas"] == pytest.approx(theirs.param_groups[0]["betas"])
        theirs.step()
        if step < total - 1:
            reference.step()


@pytest.mark.parametrize("total", [1, 2, 3, 4])
def test_short_schedules_stay_in_range(p: Package, total: int) -> None:
    schedule = p.optim.OneCycle(
        p.config.OptimConfig(lr=0.3),
        SimpleNamespace(total_steps=total, global_batch_size=64),
    )
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))])
    for step in range(total + 2):
        assert 0 < schedule.set(optimizer, step) <= 0.3
        assert 0.85 <= optimizer.param_groups[0]["betas"][0] <= 0.95


def test_rate_is_scaled_only_on_request(p: Package) -> None:
    plan = SimpleNamespace(total_steps=100, global_batch_size=512)
    peaks = {}
    for scaling in ("none", "sqrt", "linear"):
        cfg = p.config.OptimConfig(
            lr=1e-2,
            lr_scaling=scaling,
            base_batch=128,
        )
        peaks[scaling] = p.optim.OneCycle(cfg, plan).peak
    assert peaks == pytest.approx({"none": 1e-2, "sqrt": 2e-2, "linear": 4e-2})
    assert p.config.OptimConfig().lr_scaling == "none"


def test_momentum_is_cycled_only_in_optimizers_that_have_it(p: Package) -> None:
    schedule = p.optim.OneCycle(
        p.config.OptimConfig(), SimpleNamespace(total_steps=10, global_batch_size=1)
    )
    weight = [nn.Parameter(torch.zeros(1))]
    plain = torch.optim.SGD(weight, lr=1.0)
    moving = torch.optim.SGD(weight, lr=1.0, momentum=0.9)
    for optimizer, expected in ((plain, 0), (moving, 0.95)):
        schedule.set(optimizer, 0)
        assert optimizer.param_groups[0]["momentum"] == expected
    fixed = p.optim.OneCycle(
        p.config.OptimConfig(cycle_momentum=False),
        SimpleNamespace(total_steps=10, global_batch_size=1),
    )
    fixed.set(moving, 2)
    assert moving.param_groups[0]["momentum"] == 0.95


@pytest.mark.parametrize("clip", [None, 0.05])
def test_training_equals_a_loop_of_torch(p: Package, tmp_path: Path, clip: float | None) -> None:
    """With two parameter groups, a schedule, and clipping."""
    steps = 20
    options = [f"--train.steps={steps}", "--optim.lr=0.02"]
    options += [
        "--model.dropout=0",
        f"--optim.max_grad_norm={'null' if clip is None else clip}",
    ]
    p.train_here(tmp_path, *options)
    train, _, spec = p.data.load(p.data.DataConfig())
    torch.manual_seed(0)
    net = p.model.build(p.model.ModelConfig(dropout=0), spec)
    named = dict(net.named_parameters())
    groups = [
        {"params": [named[name] for name in named if named[name].ndim > 1], "weight_decay": 0.01}
    ]
    groups.append(
        {"params": [named[name] for name in named if named[name].ndim < 2], "weight_decay": 0.0}
    )
    optimizer = torch.optim.AdamW(groups, lr=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        0.02,
        steps,
        div_factor=10,
    )
    norms = []
    for step in range(steps):
        order = torch.randperm(53, generator=torch.Generator().manual_seed(step // 3))
        indices = order[step % 3 * 16 : step % 3 * 16 + 16].tolist()
        net(*train.__getitems__(indices))[0].backward()
        gradients = [weight.grad for weight in net.parameters()]
        norms.append(nn.utils.get_total_norm(gradients).item())
        nn.utils.clip_grad_norm_(net.parameters(), clip or math.inf)
        optimizer.step()
        optimizer.zero_grad()
        if step < steps - 1:
            schedule.step()
    assert [row["grad_norm"] for row in rows(tmp_path, "train")] == pytest.approx(norms, rel=1e-4)
    for name, weight in saved(tmp_path)["model"].items():
        torch.testing.assert_close(
            weight,
            named[name].detach(),
            rtol=1e-4,
            atol=1e-6,
        )


def test_rows_are_right_if_the_next_step_overwrites_the_outputs_of_the_model(
    p: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--train.steps=12", "--train.eval_every=6", "--train.batch_size=4", "--log.every=3"]
    p.train_here(tmp_path / "kept", *options)
    monkeypatch.setattr(p.train, "build", overwriting(p.model.build))
    p.train_here(tmp_path / "overwritten", *options)
    assert rows(tmp_path / "overwritten") == rows(tmp_path / "kept")


def test_weight_decay_applies_to_matrices_that_are_not_exempt(p: Package) -> None:
    net = nn.Sequential(
        nn.Linear(2, 3),
        nn.LayerNorm(3),
        nn.Embedding(3, 2),
    )
    net[0].bias.requires_grad = False
    net.no_weight_decay = {"2.weight"}  # type: ignore[assignment]
    decayed, rest = p.optim.adamw(net, p.config.OptimConfig(weight_decay=0.3)).param_groups
    assert (decayed["weight_decay"], rest["weight_decay"]) == (0.3, 0.0)
    assert [id(it) for it in decayed["params"]] == [id(net[0].weight)]
    assert {id(it) for it in rest["params"]} == {
        id(net[1].weight),
        id(net[1].bias),
        id(net[2].weight),
    }


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_reduced_precision_trains_on_the_cpu_and_resumes(
    package: MakePackage, tmp_path: Path, precision: str
) -> None:
    p = package("mlp")
    options = [f"--speed.precision={precision}", "--train.eval_every=8"]
    p.train_here(tmp_path / "fp32", "--train.steps=16", "--train.eval_every=8")
    p.train_here(tmp_path / "whole", *options, "--train.steps=16")
    for mine, other in zip(
        rows(tmp_path / "whole"),
        rows(tmp_path / "fp32"),
        strict=True,
    ):
        assert mine["loss"] == pytest.approx(other["loss"], rel=0.03)
    assert rows(tmp_path / "whole") != rows(tmp_path / "fp32")
    assert all(
        weight.dtype != torch.bfloat16 for weight in saved(tmp_path / "whole")["model"].values()
    )
    older = sorted((tmp_path / "whole/a/checkpoints").glob("step-*"))[0]
    (tmp_path / "part/a/checkpoints").mkdir(parents=True)
    older.rename(tmp_path / "part/a/checkpoints" / older.name)
    p.train_here(tmp_path / "part", *options, "--train.steps=16")
    assert equal(saved(tmp_path / "part"), saved(tmp_path / "whole"))


def test_fp16_skips_steps_that_overflow_and_the_schedule_does_not_count_them(
    p: Package, tmp_path: Path
) -> None:
    options = [
        "--speed.precision=fp16",
        "--model.loss_scale=1e4",
        "--optim.lr=1e-3",
        "--train.steps=40",
    ]
    p.train_here(tmp_path, *options)
    found = rows(tmp_path, "train")
    skipped = int(found[-1]["skipped"])
    assert 3 < skipped < 40, "until the scaler has found a scale that fits"
    assert not math.isfinite(found[0]["grad_norm"])
    assert math.isfinite(found[-1]["grad_norm"])
    plan = p.loader.BatchPlan.make(
        p.config.TrainConfig(steps=40, batch_size=16),
        53,
        1,
    )
    schedule = p.optim.OneCycle(p.config.OptimConfig(lr=1e-3), plan)
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))])
    assert found[-1]["lr"] == pytest.approx(schedule.set(optimizer, 39 - int(found[-2]["skipped"])))
    steps = {int(entry["step"]) for entry in saved(tmp_path)["optimizer"]["state"].values()}
    assert steps == {40 - skipped}


@pytest.mark.parametrize(
    "kept",
    [
        "train.gradient_accumulation_steps=2",
        "train.global_batch_size=32",
    ],
)
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_cuda_graphs_of_torch_compile_are_refused_where_gradients_are_kept(
    p: Package, tmp_path: Path, mode: str, kept: str
) -> None:
    compiled = ("--speed.compile=model", f"--speed.compile_mode={mode}")
    with pytest.raises(
        p.errors.UserError,
        match=f"speed.compile_mode is {mode}: its CUDA graphs overwrite gradients",
    ):
        p.train_here(tmp_path, *compiled, f"--{kept}")
    p.options(*compiled).check_cuda_graphs(1)
    p.options(*compiled, "--speed.compile=off").check_cuda_graphs(2)
    p.options(*compiled[:1], "--speed.compile_mode=max-autotune-no-cudagraphs").check_cuda_graphs(2)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_switches_of_tf32_agree_with_each_other(p: Package, precision: str) -> None:
    """An error of torch follows if one is read that contradicts another; this needs no GPU."""
    cudnn = torch.backends.cudnn
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark
    try:
        p.precision.setup(p.options(f"--speed.precision={precision}").speed, torch.device("cuda"))
        with cudnn.flags():
            pass
        assert cudnn.allow_tf32 == torch.backends.cuda.matmul.allow_tf32 == (precision != "fp32")
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32, cudnn.benchmark = before[1:]


def test_run_of_a_gpu_with_tf32_is_evaluated_on_a_cpu(p: Package, tmp_path: Path) -> None:
    results = p.train_here(tmp_path, "--train.steps=2", "--speed.precision=tf32")
    world = p.distributed.World(0, 1, torch.device("cpu"))
    assert p.evaluate.evaluate_run(tmp_path / "a", world) == results


def test_device_that_is_not_there_is_refused(p: Package, tmp_path: Path) -> None:
    with pytest.raises(p.errors.UserError, match="run.device is xpu, but torch"):
        p.train_here(tmp_path, "--run.device=xpu")
