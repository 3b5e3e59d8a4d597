"""Out of memory: the run goes on with smaller forward passes, in this process or in the next, and computes the same."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from .. import checkpoint, data, faults, model
from .. import train as framework
from ..config import Config
from ..contracts import Batch, call, map_tensors
from ..distributed import World
from ..errors import UserError
from ..faults import memory
from ..train import train
from .conftest import SMALL, main, read_rows, read_weights, run_ranks_in_turn, small
from .faulty import Faulty, install, micro_batch

pytestmark = pytest.mark.usefixtures("short_validation")

OPTIONS = ["--train.steps=6", "--train.micro_batch=8", "--train.accumulate=2", "--train.eval_every=3", "--log.every=2"]
OPTIONS += ["--train.ema=0.9", "--optim.clip=0.5"]
OPTIONS += ["--model.dropout=0"] * hasattr(small().model, "dropout")  # its masks are others in halves
GOES_ON = not hasattr(framework, "require")
"""Whether the framework makes a step again in the same process, as plain PyTorch does."""


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Faulty:
    """What fails in the runs of a test."""
    found = Faulty()
    install(found, monkeypatch.setattr)
    return found


def draws_alike() -> bool:
    """Whether halves of a batch draw the numbers of the whole: not if a sample takes several kinds, as in diffusion."""
    cfg = small(*OPTIONS)
    samples = data.load(cfg.data)
    net = model.build(cfg.model, samples.spec).train()
    batch = data.Prepare(samples.spec, cfg.data)(samples.train.__getitems__([*range(8)]), False, torch.Generator())

    def part(begin: int, size: int) -> Batch:
        return map_tensors(lambda it: it[begin : begin + size], batch)

    def loss(size: int) -> float:
        torch.manual_seed(0)
        losses = [float(call(net, part(begin, size))[0].detach()) for begin in range(0, 8, size)]
        return sum(losses) / len(losses)

    return loss(4) == pytest.approx(loss(8), rel=1e-4)


def assert_equal_by_rounding(ours: Path, theirs: Path) -> None:
    if not draws_alike():
        return
    for some, others in zip(read_rows(ours, "train"), read_rows(theirs, "train"), strict=True):
        assert some.pop("split") == others.pop("split")
        assert some == pytest.approx(others, rel=1e-4)
    weights = read_weights(theirs, 6)
    for name, value in read_weights(ours, 6).items():
        torch.testing.assert_close(value, weights[name], rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(not GOES_ON, reason="this framework ends the process instead")
@pytest.mark.parametrize("in_backward", [False, True])
def test_step_is_made_again_in_halves(
    config: Callable[..., Config], world: World, tmp_path: Path, faulty: Faulty, in_backward: bool
) -> None:
    """From its first micro-batch; the result is that of whole micro-batches, and a resumed run keeps to halves."""
    train(config("--run.name=whole", *OPTIONS), world)
    assert set(faulty.sizes) == {8}
    faulty.sizes, faulty.in_backward, faulty.most = [], in_backward, {micro_batch(2, 1): 3}
    train(config("--run.name=halves", *OPTIONS), world)
    halved = [8, 8, 8, 8, 4, 4 if in_backward else 0]
    assert faulty.sizes[:5] == halved[:5]
    assert faulty.sizes[-32:] == [2] * 32
    assert_equal_by_rounding(tmp_path / "halves", tmp_path / "whole")
    shutil.copytree(tmp_path / "halves", tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut/checkpoints/step-00000006")
    faulty.sizes = []
    train(config("--run.name=cut", "--run.resume=auto", *OPTIONS), world)
    assert set(faulty.sizes) == {2}
    assert read_rows(tmp_path / "cut", "train") == read_rows(tmp_path / "halves", "train")
    ours, theirs = read_weights(tmp_path / "cut", 6), read_weights(tmp_path / "halves", 6)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_one_sample_that_does_not_fit_is_an_error(
    config: Callable[..., Config], world: World, tmp_path: Path, faulty: Faulty
) -> None:
    faulty.limit = 0
    options = ["--run.name=a", *OPTIONS, "--train.micro_batch=1"]
    with pytest.raises(
        UserError, match="^out of memory in step 1 with one sample per forward pass: use speed.prec"
    ) as end:
        train(config(*options), world)
    assert end.value.status == 1


def test_process_ends_where_it_cannot_go_on(
    tmp_path: Path, faulty: Faulty, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a status that asks for a restart; the run then has smaller micro-batches and the same global batch.

    Without accumulation, so that Lightning calls the model within the optimizer's step.
    """
    monkeypatch.setattr(memory, "_is_bound", lambda *_: True)
    command = [*SMALL, *OPTIONS, f"--run.dir={tmp_path}", "--run.resume=auto"]
    command += ["--train.micro_batch=16", "--train.accumulate=1"]
    main([*command, "--run.name=whole"])
    faulty.limit, faulty.sizes = 3, []
    for samples in (8, 4, 2):
        with pytest.raises(SystemExit) as end:
            main([*command, "--run.name=a"])
        assert end.value.code == 76
        told = f"continue with --run.resume auto, in micro-batches of {samples} samples and the same global batch"
        assert told in capsys.readouterr().err
        faulty.failed = []  # `end` keeps the error, and so its tensors
    main([*command, "--run.name=a"])
    assert (faulty.sizes[:3], set(faulty.sizes[3:])) == ([16, 8, 4], {2})
    assert [row["step"] for row in read_rows(tmp_path / "a", "train")] == [2, 3, 4, 6]
    assert "16 samples: 1 x 8 x 2 (ranks x accumulate x micro_batch)" in capsys.readouterr().out


def test_recorded_micro_batch_divides_that_of_the_config(
    config: Callable[..., Config], world: World, tmp_path: Path
) -> None:
    file = tmp_path / "a" / memory.RECORD
    file.parent.mkdir()
    for content, options, expected in [
        ('{"micro_batch": 5}', ["--train.micro_batch=12"], (4, 12)),
        ('{"micro_batch": 4}', ["--train.micro_batch=8", "--train.global_batch=48"], (4, 48)),
        ('{"micro_batch": 9}', ["--train.micro_batch=8"], (8, None)),
        ('{"micro_batch": 0}', [], (16, None)),
        ("torn", [], (16, None)),
    ]:
        file.write_text(content)
        for place in ("--run.name=a", f"--run.resume={tmp_path}/a/checkpoints/best"):
            found = faults.smaller_batches(config(place, *options), world).train
            assert (found.micro_batch, found.global_batch) == expected


def test_other_errors_are_not_handled(config: Callable[..., Config], world: World, faulty: Faulty) -> None:
    faulty.error = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        train(config(*OPTIONS), world)
    assert len(faulty.sizes) == 1


@pytest.mark.skipif(not GOES_ON, reason="this framework ends the process instead")
def test_one_of_two_ranks_goes_on_in_halves(tmp_path: Path) -> None:
    """The other one waits for it in the backward pass that reduces the gradients; the checkpoint has the new size."""
    options = [*OPTIONS, "--train.accumulate=1", "--train.micro_batch=4"]
    run_ranks_in_turn(2, [[*options, "--run.name=whole"]], tmp_path, "memory:-1")
    run_ranks_in_turn(2, [[*options, "--run.name=one"]], tmp_path, f"memory:{micro_batch(2, 1)}")
    assert_equal_by_rounding(tmp_path / "one", tmp_path / "whole")
    states = [checkpoint.read_state(tmp_path / name / "checkpoints/step-00000003") for name in ("whole", "one")]
    assert [state["forward_batch"] for state in states] == [None, 2]
