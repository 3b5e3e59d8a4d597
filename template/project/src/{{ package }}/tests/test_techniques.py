"""Each technique acts as it should and changes nothing else: losses agree with the run without it."""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.autograd.graph import saved_tensors_hooks

from .. import open_run as running
from .. import techniques
from ..config import Config
from ..distributed import World
from ..errors import UserError
from ..loaders import Loader
from ..log import RunLog
from ..techniques.device_cache import DeviceCache
from ..train import train
from .conftest import HAS_BLOCKS, NO_COMPILE, read_rows, unsupported
from .observed import CountedDataset, Observed

pytestmark = pytest.mark.usefixtures("short_validation")

STEPS = 8
PLAIN = [
    "--run.name=off",
    f"--train.steps={STEPS}",
    "--log.every=1",
    "--loader.workers=0",
    "--speed.channels_last=false",
]


@pytest.fixture
def run(
    config: Callable[..., Config],
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., Observed]:
    """Train for some steps and return what was observed."""

    def go(*options: str) -> Observed:
        observed = Observed()
        cfg = config(*PLAIN, *options)

        def build(model: nn.Module, settings: Any) -> torch.optim.Optimizer:
            observed.model, observed.optimizer = model, make(model, settings)
            for module in model.modules():
                if cfg.speed.compile == "off":
                    module.register_forward_hook(note)
            found: torch.optim.Optimizer = observed.optimizer
            return found

        def note(module: nn.Module, inputs: object, output: object) -> None:
            observed.modes |= {"anomaly"} if torch.is_anomaly_enabled() else set()
            observed.modes |= {"deterministic"} if torch.are_deterministic_algorithms_enabled() else set()
            if module.training and isinstance(output, Tensor):
                observed.dtypes.add(output.dtype)

        def pack(value: Tensor) -> Tensor:
            observed.saved += value.nbytes
            return value

        def open_loader(samples: Any, *others: Any) -> Loader:
            return Loader(CountedDataset(samples, observed.fetched), *others)

        def cache(loader: Loader, cfg: Any) -> Any:
            observed.loader = cached(loader, cfg)
            return observed.loader

        make: Any = techniques.build_optimizer
        cached = techniques.cache_on_device
        counters.clear()
        torch._dynamo.reset()
        with monkeypatch.context() as patch, saved_tensors_hooks(pack, lambda value: value):
            patch.setattr(techniques, "build_optimizer", build)
            patch.setattr(techniques, "cache_on_device", cache)
            patch.setattr(running, "Loader", open_loader)
            patch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager", mode=None))
            train(cfg, world)
        observed.printed = capsys.readouterr().out
        observed.graphs = counters["stats"]["unique_graphs"]
        folder = tmp_path / str(cfg.run.name)
        observed.logged = (folder / "metrics.jsonl").read_text()
        observed.rows, observed.val = read_rows(folder, "train"), read_rows(folder, "val")
        return observed

    return go


@pytest.fixture(scope="module")
def kept() -> list[Observed]:
    """The run without techniques, once it has been made: all tests compare with the same."""
    return []


Check = Callable[[Observed, Observed], bool]
BITS = 0.0
ROUNDING = 2e-3
BF16 = 3e-2

TECHNIQUES: dict[str, tuple[list[str], float, Check]] = {
    "bf16": (["--speed.precision=bf16"], BF16, lambda on, off: torch.bfloat16 in on.dtypes and len(off.dtypes) == 1),
    "fp16": (
        ["--speed.precision=fp16"],
        BF16,
        lambda on, off: torch.float16 in on.dtypes and "skipped_steps" in on.rows[0],
    ),
    "channels_last": (
        ["--speed.channels_last=true"],
        ROUNDING,
        lambda on, off: memory_format(on) != memory_format(off),
    ),
    "compile the model": (["--speed.compile=model"], ROUNDING, lambda on, off: on.graphs > 0 and off.graphs == 0),
    "compile blocks": (["--speed.compile=blocks"], ROUNDING, lambda on, off: on.graphs > 0 and off.graphs == 0),
    "checkpoint blocks": (
        ["--speed.activation_checkpointing=blocks"],
        BITS,
        lambda on, off: on.saved < 0.9 * off.saved and on.val == off.val,
    ),
    "checkpoint every second block": (
        ["--speed.activation_checkpointing=every:2"],
        BITS,
        lambda on, off: on.saved < off.saved and on.val == off.val,
    ),
    "checkpoint operations of blocks": (
        ["--speed.activation_checkpointing=ops"],
        BITS,
        lambda on, off: on.saved < 0.9 * off.saved and on.val == off.val,
    ),
    "device cache": (
        ["--data.cache=device"],
        BITS,
        lambda on, off: type(on.loader) is DeviceCache and on.val == off.val and max(on.fetched) > max(off.fetched),
    ),
    "workers": (
        ["--loader.workers=1"],
        BITS,
        lambda on, off: on.loader.loader.num_workers == 1 and on.fetched == [] != off.fetched,
    ),
    "no fused update": (
        ["--optim.fused=false"],
        ROUNDING,
        lambda on, off: not on.optimizer.defaults["fused"] and off.optimizer.defaults["fused"],
    ),
    "gradients filled with zeros": (
        ["--optim.set_to_none=false"],
        BITS,
        lambda on, off: (
            all(p.grad is not None and not p.grad.any() for p in on.model.parameters())
            and all(p.grad is None for p in off.model.parameters())
        ),
    ),
    "global batch": (
        ["--train.global_batch=32", "--optim.lr_scaling=linear", "--optim.base_batch=16"],
        1.0,
        lambda on, off: len(on.fetched) > 2 * STEPS and on.rows[-1]["loss"] != off.rows[-1]["loss"],
    ),
    "ema": (["--train.ema=0.9"], BITS, lambda on, off: on.val != off.val),
    "mfu": (["--log.mfu=true"], BITS, lambda on, off: "tflops" in on.logged and "tflops" not in off.logged),
    "nan detection": (["--debug.nan=true"], BITS, lambda on, off: hooks(on) > hooks(off)),
    "anomaly detection": (["--debug.anomaly=true"], BITS, lambda on, off: on.modes == {"anomaly"} and not off.modes),
    "deterministic": (["--debug.deterministic=true"], BITS, lambda on, off: on.modes == {"deterministic"}),
    "gradcheck": (
        ["--debug.gradcheck=true"],
        BITS,
        lambda on, off: "agree with finite differences in float64" in on.printed and "float64" not in off.printed,
    ),
}


def memory_format(observed: Observed) -> bool | None:
    """Return whether the weights of convolutions are channels-last; None for a model without convolutions."""
    convolutions = [p for p in observed.model.parameters() if p.ndim == 4 and p.shape[1] > 1 and p.shape[2] > 1]
    return all(p.is_contiguous(memory_format=torch.channels_last) for p in convolutions) if convolutions else None


def hooks(observed: Observed) -> int:
    return sum(len(module._forward_hooks) for module in observed.model.modules())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # from dynamo itself
@pytest.mark.parametrize("name", TECHNIQUES)
def test_technique_acts_and_losses_agree(run: Callable[..., Observed], kept: list[Observed], name: str) -> None:
    options, tolerance, check = TECHNIQUES[name]
    if unsupported(options):
        with pytest.raises(UserError, match=re.escape(unsupported(options))):
            run(*options)
        return
    if "block" in name and not HAS_BLOCKS:
        with pytest.raises(UserError, match="this model has no `blocks`"):
            run(*options)
        return
    if "compile" in name and NO_COMPILE:
        with pytest.raises(UserError, match="speed.compile is .*; use off"):
            run(*options)
        return
    if not kept:
        kept.append(run())
    off, on = kept[0], run("--run.name=on", *options)
    if name == "channels_last" and memory_format(off) is None:
        check = lambda on, off: True  # noqa: E731
    assert len(on.rows) == len(off.rows) == STEPS
    for with_it, without in zip(on.rows, off.rows, strict=True):
        assert with_it["loss"] == pytest.approx(without["loss"], rel=tolerance, abs=0)
    assert check(on, off)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("no_print")
@pytest.mark.parametrize("what", ["model", "blocks"])
def test_no_graph_breaks_or_recompiles_after_the_first_validation(
    run: Callable[..., Observed], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if NO_COMPILE or (what == "blocks" and not HAS_BLOCKS):
        pytest.skip("this model is not compiled, or names no `blocks`")
    compiled: list[int] = []
    row = RunLog.row

    def note(self: RunLog, split: str, step: int, values: Any) -> None:
        compiled.append(counters["stats"]["unique_graphs"])
        row(self, split, step, values)

    monkeypatch.setattr(RunLog, "row", note)
    run(f"--speed.compile={what}", "--train.eval_every=2")
    assert compiled[3] > 0, "rows: two steps, a validation, a step"
    assert compiled[3:] == [compiled[3]] * (len(compiled) - 3)
    assert not counters["graph_break"]


def test_fewer_checkpointed_blocks_save_more_activations(run: Callable[..., Observed]) -> None:
    if not HAS_BLOCKS:
        pytest.skip("this model has no `blocks`")
    kept = [run(f"--run.name={i}", f"--speed.activation_checkpointing={how}").saved for i, how in enumerate(HOW)]
    assert kept == sorted(kept)
    assert len(set(kept)) == 3


HOW = ["blocks", "every:2", "none"]
