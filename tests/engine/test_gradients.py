"""The gradient of a step is that of the mean over everything that counts, however it is divided."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from counted import BATCH, UNEVEN, check, check_row, expected, gradients, options
from engine import MakePackage, Package, equal, rows, saved
from torch import Tensor, nn

STEP = ["--train.steps=1", "--train.eval_every=1", "--optim.max_grad_norm=null"]
STEP += ["--model.dropout=0", "--model.kind=counted"]
KINDS = ["counted", "counted_on_host"]
"""Where the count is: a tensor, or a number."""


def step(counts: list[int], ranks: int = 1, accumulation_steps: int = 1) -> list[str]:
    """Return the options of a step that is divided like this."""
    parts = [f"--data.{name}={value}" for name, value in options(counts).items()]
    parts.append(f"--train.batch_size={BATCH // ranks // accumulation_steps}")
    return [*STEP, *parts, f"--train.gradient_accumulation_steps={accumulation_steps}"]


def in_order(p: Package, counts: list[int]) -> list[int]:
    """Return the counts of the samples, so that the micro-batches have them in the given order."""
    plan = p.loader.BatchPlan.make(
        p.config.TrainConfig(batch_size=BATCH),
        BATCH,
        1,
    )
    world = p.distributed.World(0, 1, torch.device("cpu"))
    order = next(p.loader.train_batches(plan, world, 0, 0))
    placed = [0] * BATCH
    for number, count in zip(order, counts, strict=True):
        placed[number] = count
    return placed


def finish(p: Package, folder: Path, *given: str, ranks: int = 1) -> None:
    if ranks == 1:
        p.train_here(folder, *given)
    else:
        p.finish(folder, *given, ranks=ranks)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("ranks", "parts"),
    [
        (1, 1),
        (1, 2),
        (1, 4),
        (2, 1),
        (2, 2),
        (2, 4),
    ],
)
def test_gradient_of_a_step_is_that_of_one_batch(
    p: Package, tmp_path: Path, kind: str, ranks: int, parts: int
) -> None:
    """In the first half of the step, so in the first of two micro-batches, nothing counts."""
    counts = in_order(p, UNEVEN)
    finish(
        p,
        tmp_path,
        *step(counts, ranks, parts),
        f"--model.kind={kind}",
        ranks=ranks,
    )
    wanted = expected(p, counts)
    check(gradients(saved(tmp_path)["optimizer"]), wanted)
    check_row(rows(tmp_path, "train")[0], wanted)
    assert math.isnan(rows(tmp_path, "val")[0]["loss"]), "nothing counts"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parts", [2, 4])
def test_micro_batch_at_the_end_in_which_nothing_counts_adds_nothing(
    p: Package, tmp_path: Path, kind: str, parts: int
) -> None:
    counts = in_order(p, UNEVEN[::-1])
    p.train_here(tmp_path, *step(counts, 1, parts), f"--model.kind={kind}")
    check(gradients(saved(tmp_path)["optimizer"]), expected(p, counts))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parts", [1, 4])
def test_step_in_which_nothing_counts_has_gradients_of_zero(
    p: Package, tmp_path: Path, kind: str, parts: int
) -> None:
    p.train_here(
        tmp_path,
        *step([0] * BATCH, 1, parts),
        f"--model.kind={kind}",
    )
    row = rows(tmp_path, "train")[0]
    assert (row["loss"], row["grad_norm"]) == (0, 0)
    assert not any(part.any() for part in gradients(saved(tmp_path)["optimizer"]))


def test_model_without_a_count_of_its_loss_is_refused(
    p: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        p.model.Net,
        "forward",
        lambda net, *_: (net.layers[0].weight.sum(), {}),
    )
    with pytest.raises(p.errors.UserError, match='of `forward` in model.py have no "loss": add'):
        p.train_here(tmp_path, "--train.steps=1")


FORMS: dict[str, Callable[[Tensor, Tensor], tuple[Any, Any]]] = {
    "numbers": lambda total, count: (total.item(), int(count)),
    "a number and a tensor": lambda total, count: (total.item(), count),
    "tensors of one entry": lambda total, count: (total.reshape(1), count.reshape(1)),
    "tensors with a graph": lambda total, count: (total, count + 0 * total),
}


@pytest.mark.parametrize("form", FORMS)
def test_sum_and_count_of_the_loss_may_have_each_form(p: Package, form: str) -> None:
    slope = nn.Parameter(torch.tensor(3.0))

    def forward(values: Tensor) -> tuple[Tensor, dict[str, Any]]:
        losses = (slope * values) ** 2
        return losses.mean(), {"loss": FORMS[form](losses.sum(), torch.tensor(len(values)))}

    mean = p.loss.StepMean(lambda count: count)
    for micro, values in enumerate((torch.ones(1), torch.full((3,), 2.0))):
        loss, metrics = p.loss.compute_loss(forward, (values,))
        (loss * mean.weight(metrics, micro == 0) / 2).backward()
    mean.scale([slope], 2)
    assert slope.grad is not None
    assert slope.grad.item() == pytest.approx(2 * 3 * (1 + 3 * 4) / 4)


def test_counts_of_low_precision_are_summed_exactly(p: Package) -> None:
    mean = p.loss.StepMean(lambda count: count)
    counts = [torch.tensor(number, dtype=torch.bfloat16) for number in (128, 129, 131)]
    for micro, count in enumerate(counts):
        mean.weight({"loss": (0, count)}, micro == 0)
    assert mean.total == 128 + 129 + 131


def test_loss_without_a_gradient_is_one_line(p: Package) -> None:
    def forward(values: Tensor) -> tuple[Tensor, dict[str, Any]]:
        return torch.zeros(()), {"loss": (0.0, 0)}

    with pytest.raises(p.errors.UserError, match="model.py has no gradient: make it from the outp"):
        p.loss.compute_loss(forward, (torch.ones(1),))
    with torch.no_grad():
        p.loss.compute_loss(forward, (torch.ones(1),))


@pytest.mark.parametrize("kind", [int, torch.tensor])
def test_first_count_that_is_not_0_divides_the_others(p: Package, kind: Any) -> None:
    """Weights of thousands, of pixels, would overflow in fp16."""
    mean = p.loss.StepMean(lambda count: count)
    counts = [0, 0, 500, 1000]
    metrics = [{"loss": (kind(0), kind(count))} for count in counts]
    weights = [mean.weight(pair, micro == 0) for micro, pair in enumerate(metrics)]
    assert weights == [0, 0, 1, 2]


@pytest.mark.parametrize(("what", "sizes"), {"loss": (3, 1), 'count of "loss"': (1, 3)}.items())
def test_loss_that_is_not_one_number_is_refused(
    p: Package, what: str, sizes: tuple[int, int]
) -> None:
    loss, count = map(torch.ones, sizes)
    message = f"the {what} of `forward` in model.py has the shape .3,.: return one number"
    with pytest.raises(p.errors.UserError, match=message):
        p.loss.compute_loss(lambda: (loss, {"loss": (loss.sum(), count)}), ())


def test_rank_may_have_a_number_where_another_one_has_a_tensor(
    p: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a model returns 0 before it looks for what counts: the ranks must send the same type."""
    sent: list[Tensor] = []
    monkeypatch.setattr(p.distributed.dist, "all_reduce", sent.append)
    world = p.distributed.World(0, 2, torch.device("cpu"))
    for count in (0, 2.5, torch.tensor(7), torch.tensor(0.5, dtype=torch.float64)):
        assert world.mean(count) == count / 2
    assert {(part.dtype, part.shape) for part in sent} == {(torch.float32, torch.Size([]))}


@pytest.mark.parametrize("parts", [1, 4])
def test_equal_numbers_cost_nothing(
    p: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    """Losses and weights are, to the bit, those of micro-batches that all have the same weight."""
    several = ["--train.steps=3", f"--train.gradient_accumulation_steps={parts}"]
    several += ["--train.batch_size=3"]  # 1 / 3 has no exact form
    monkeypatch.setattr(torch, "_foreach_mul_", lambda *_: pytest.fail("it scales gradients"))
    p.train_here(tmp_path / "counts", *several, "--optim.max_grad_norm=null")
    monkeypatch.setattr(p.train.StepMean, "weight", lambda *_: 1)
    monkeypatch.setattr(p.train.StepMean, "scale", lambda *_: None)
    p.train_here(tmp_path / "equal", *several, "--optim.max_grad_norm=null")
    assert rows(tmp_path / "counts") == rows(tmp_path / "equal")
    assert equal(saved(tmp_path / "counts"), saved(tmp_path / "equal"))


@pytest.mark.parametrize("parts", [1, 4])
def test_clipping_sees_the_gradient_of_the_step(p: Package, tmp_path: Path, parts: int) -> None:
    counts = in_order(p, UNEVEN)
    wanted = expected(p, counts)
    limit = wanted.norm / 2
    p.train_here(tmp_path, *step(counts, 1, parts), f"--optim.max_grad_norm={limit}")
    clipped = wanted._replace(gradients=[part / 2 for part in wanted.gradients])
    check(gradients(saved(tmp_path)["optimizer"]), clipped, 1e-5)  # torch adds 1e-6 to the norm


@pytest.mark.parametrize("kind", KINDS)
def test_fp16_unscales_the_gradient_of_the_step(p: Package, tmp_path: Path, kind: str) -> None:
    counts = in_order(p, UNEVEN[::-1])
    fp16 = ["--speed.precision=fp16", f"--model.kind={kind}"]
    p.train_here(tmp_path, *step(counts, 1, 4), *fp16)
    check(
        gradients(saved(tmp_path)["optimizer"]),
        expected(p, counts),
        0.01,
    )


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("size", [1, 3])
def test_chunks_of_oom_have_the_gradient_of_one_batch(
    tiny: MakePackage, tmp_path: Path, ranks: int, size: int
) -> None:
    p = tiny("oom")
    counts = in_order(p, UNEVEN)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/oom.json").write_text(str(size))
    finish(
        p,
        tmp_path,
        *step(counts, ranks, 2),
        "--oom.enabled=true",
        ranks=ranks,
    )
    wanted = expected(p, counts)
    check(gradients(saved(tmp_path)["optimizer"]), wanted)
    check_row(rows(tmp_path, "train")[0], wanted)


def test_step_that_starts_again_without_memory_counts_once(
    tiny: MakePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = tiny("oom")
    counts = in_order(p, UNEVEN[::-1])
    forward = p.model.Net.forward
    calls = []

    def limited(net: nn.Module, *parts: Any) -> Any:
        calls.append(len(parts[0]))
        if len(calls) > 1 and len(parts[0]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(net, *parts)

    monkeypatch.setattr(p.model.Net, "forward", limited)
    p.train_here(tmp_path, *step(counts, 1, 2), "--oom.enabled=true")
    assert calls[:3] == [8, 8, 4]
    check(gradients(saved(tmp_path)["optimizer"]), expected(p, counts))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_sharded_gradients_are_those_of_one_batch(
    tiny: MakePackage, tmp_path: Path, kind: str
) -> None:
    """With such an epsilon, the update of AdamW depends on the size of the gradient."""
    p = tiny("fsdp")
    counts = in_order(p, UNEVEN)
    more = [f"--model.kind={kind}", "--optim.eps=0.01"]
    p.train_here(tmp_path / "one", *step(counts), *more)
    sharded = ["--fsdp.enabled=true"]
    p.finish(
        tmp_path / "sharded",
        *step(counts, 2, 2),
        *more,
        *sharded,
        ranks=2,
    )
    check_row(rows(tmp_path / "sharded", "train")[0], expected(p, counts))
    checkpoint = next((tmp_path / "sharded/a/checkpoints").glob("step-*"))
    weights = torch.load(checkpoint / "weights.pt", weights_only=True)["model"]
    torch.testing.assert_close(
        weights, dict(saved(tmp_path / "one")["model"]), rtol=1e-6, atol=1e-7
    )


def test_adapters_have_the_gradient_of_one_batch(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("lora")
    counts = in_order(p, UNEVEN)
    for parts in (1, 4):
        p.train_here(
            tmp_path / str(parts),
            *step(counts, 1, parts),
            "--lora.enabled=true",
        )
    one, four = (gradients(saved(tmp_path / str(parts))["optimizer"]) for parts in (1, 4))
    assert any(part.any() for part in one)
    for mine, other in zip(four, one, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-7)
