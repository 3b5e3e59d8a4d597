"""Each switch changes what it should and nothing else: losses agree with the run without it, and it was seen to act."""

import copy
import functools
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.autograd.graph import saved_tensors_hooks

from .. import data, model, optim, techniques
from .. import run as running
from ..config import Config, SpeedConfig
from ..contracts import blocks_of
from ..distributed import World
from ..errors import UserError
from ..loaders import Loader
from ..log import RunLog
from ..techniques import activation_checkpointing, device_cache, fp8
from ..techniques.device_cache import DeviceCache
from ..train import train
from .conftest import EAGER, HAS_BLOCKS, cannot, losses, rows

pytestmark = pytest.mark.usefixtures("short_validation")

STEPS = 8
PLAIN = [
    "--run.name=off",
    f"--train.steps={STEPS}",
    "--log.every=1",
    "--loader.workers=0",
    "--speed.channels_last=false",
]


@dataclass
class Seen:
    """What was noticed while a run went on."""

    dtypes: set[torch.dtype] = field(default_factory=set)
    """Of the outputs of the model's modules in training."""
    saved: int = 0
    """Bytes kept for backward."""
    fetched: list[int] = field(default_factory=list)
    """Sizes of the batches that this process asked the data set for."""
    loader: Any = None
    """What gave the batches."""
    modes: set[str] = field(default_factory=set)
    """Of torch's debugging, while the model ran."""
    printed: str = ""
    graphs: int = 0
    """Pieces that were compiled."""
    model: nn.Module = field(default_factory=nn.Module)
    optimizer: Any = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    val: list[dict[str, Any]] = field(default_factory=list)


class Counted:
    """A data set that notes what it is asked for, in the process that asks."""

    def __init__(self, samples: Any, fetched: list[int]) -> None:
        self.samples, self.fetched = samples, fetched

    def __len__(self) -> int:
        return len(self.samples)

    def __getitems__(self, indices: list[int]) -> Any:
        self.fetched.append(len(indices))
        return self.samples.__getitems__(indices)


@pytest.fixture
def run(
    config: Callable[..., Config],
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., Seen]:
    """Train for some steps and tell what was seen."""

    def go(*options: str) -> Seen:
        seen = Seen()
        cfg = config(*PLAIN, *options)

        def build(model: nn.Module, settings: Any) -> torch.optim.Optimizer:
            seen.model, seen.optimizer = model, make(model, settings)
            for module in model.modules():
                if cfg.speed.compile == "off":
                    module.register_forward_hook(note)
            found: torch.optim.Optimizer = seen.optimizer
            return found

        def note(module: nn.Module, inputs: object, output: object) -> None:
            seen.modes |= {"anomaly"} if torch.is_anomaly_enabled() else set()
            seen.modes |= {"deterministic"} if torch.are_deterministic_algorithms_enabled() else set()
            if module.training and isinstance(output, Tensor):
                seen.dtypes.add(output.dtype)

        def pack(value: Tensor) -> Tensor:
            seen.saved += value.nbytes
            return value

        def open_loader(samples: Any, *others: Any) -> Loader:
            return Loader(Counted(samples, seen.fetched), *others)

        def cache(loader: Loader, cfg: Any) -> Any:
            seen.loader = cached(loader, cfg)
            return seen.loader

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
        seen.printed = capsys.readouterr().out
        seen.graphs = counters["stats"]["unique_graphs"]
        folder = tmp_path / str(cfg.run.name)
        seen.rows, seen.val = rows(folder, "train"), rows(folder, "val")
        return seen

    return go


Acted = Callable[[Seen, Seen], bool]
BITS = 0.0
ROUNDING = 2e-3
BF16 = 3e-2

SWITCHES: dict[str, tuple[list[str], float, Acted]] = {
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
    "mfu": (["--log.mfu=true"], BITS, lambda on, off: "tflops" in on.printed and "tflops" not in off.printed),
    "nan hunt": (["--debug.nan=true"], BITS, lambda on, off: hooks(on) > hooks(off)),
    "anomaly detection": (["--debug.anomaly=true"], BITS, lambda on, off: on.modes == {"anomaly"} and not off.modes),
    "deterministic": (["--debug.deterministic=true"], BITS, lambda on, off: on.modes == {"deterministic"}),
    "gradcheck": (
        ["--debug.gradcheck=true"],
        BITS,
        lambda on, off: "agree with finite differences in float64" in on.printed and "float64" not in off.printed,
    ),
}


def memory_format(seen: Seen) -> bool | None:
    """Whether convolutions' weights are channels-last; None for a model without one, which the switch leaves alone."""
    convolutions = [p for p in seen.model.parameters() if p.ndim == 4 and p.shape[1] > 1 and p.shape[2] > 1]
    return all(p.is_contiguous(memory_format=torch.channels_last) for p in convolutions) if convolutions else None


def hooks(seen: Seen) -> int:
    return sum(len(module._forward_hooks) for module in seen.model.modules())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo's own look at it
@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_acts_and_changes_nothing_else(run: Callable[..., Seen], name: str) -> None:
    options, tolerance, acted = SWITCHES[name]
    if cannot(options):
        with pytest.raises(UserError, match=re.escape(cannot(options))):
            run(*options)
        return
    if "block" in name and not HAS_BLOCKS:
        with pytest.raises(UserError, match="this model names no `blocks`"):
            run(*options)
        return
    if "compile" in name and EAGER:
        with pytest.raises(UserError, match="speed.compile is .*; use off"):
            run(*options)
        return
    off, on = run(), run("--run.name=on", *options)
    if name == "channels_last" and memory_format(off) is None:
        acted = lambda on, off: True  # noqa: E731
    assert len(on.rows) == len(off.rows) == STEPS
    for with_it, without in zip(on.rows, off.rows, strict=True):
        assert with_it["loss"] == pytest.approx(without["loss"], rel=tolerance, abs=0)
    assert acted(on, off)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("what", ["model", "blocks"])
def test_no_graph_breaks_and_no_recompiles_after_the_first_validation(
    run: Callable[..., Seen], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if EAGER or (what == "blocks" and not HAS_BLOCKS):
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


def test_fewer_checkpointed_blocks_keep_more(run: Callable[..., Seen]) -> None:
    if not HAS_BLOCKS:
        pytest.skip("this model names no `blocks`")
    kept = [run(f"--run.name={i}", f"--speed.activation_checkpointing={how}").saved for i, how in enumerate(HOW)]
    assert kept == sorted(kept)
    assert len(set(kept)) == 3


HOW = ["blocks", "every:2", "none"]


def test_dropout_is_the_same_in_the_second_forward_pass() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.BatchNorm1d(64))])

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.blocks[0](x)
            return y

    torch.manual_seed(0)
    plain = Net()
    checkpointed = copy.deepcopy(plain)
    activation_checkpointing.apply(checkpointed, SpeedConfig(activation_checkpointing="blocks"))
    inputs = torch.randn(4, 8)
    for net in (plain, checkpointed):
        torch.manual_seed(1)
        net(inputs).square().sum().backward()
    for ours, theirs in zip(checkpointed.parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, checkpointed.state_dict()[name]), "statistics are updated once"


def test_a_budget_reaches_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._functorch.config as compiler

    monkeypatch.setattr(compiler, "activation_memory_budget", 1.0)
    activation_checkpointing.apply(nn.Module(), SpeedConfig(activation_checkpointing="budget:0.25", compile="model"))
    assert compiler.activation_memory_budget == 0.25


def test_a_cache_larger_than_memory_is_refused(
    config: Callable[..., Config], world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_cache, "_free", lambda device: 1000)
    with pytest.raises(UserError, match=r"data.cache is 'device': the samples take .* GB, and cpu has 0.00 GB free"):
        train(config("--run.name=a", "--data.cache=device"), world)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_the_schedule_reaches_the_optimizer(
    config: Callable[..., Config], world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    used: list[tuple[float, float]] = []
    make: Any = techniques.build_optimizer

    def note(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        for group in optimizer.param_groups:
            used.append((group["lr"], group["betas"][0] if "betas" in group else group["momentum"]))

    def build(*args: Any) -> Any:
        optimizer = make(*args)
        for part in getattr(optimizer, "parts", [optimizer]):
            part.register_step_pre_hook(note)
        return optimizer

    cfg = config("--run.name=a", f"--optim.name={name}", "--train.steps=6")
    if name == "muon" and not any(p.ndim == 2 for p in _blocks(cfg)):
        pytest.skip("this model has no matrices in `blocks`")
    monkeypatch.setattr(techniques, "build_optimizer", build)
    train(cfg, world)
    peak = optim.peak_lr(cfg.optim, 16)
    schedule = techniques.build_schedule(cfg.optim, peak, 6)
    assert set(used) == {schedule(step) for step in range(6)}
    assert len({momentum for _, momentum in used}) > 2, "it cycles"


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon", "lamb", "lars", "novograd"])
def test_every_optimizer_learns_and_resumes(
    config: Callable[..., Config], world: World, tmp_path: Path, name: str
) -> None:
    rate = {"adamw": 4e-3, "sgd": 0.1, "muon": 4e-3, "lamb": 1e-2, "lars": 20.0, "novograd": 1e-2}[name]
    stuck = name == "lars" and _begins_at_zero(config())  # its rate is in proportion to a layer's weights
    if stuck:
        rate = 0.1  # the first step has no weights to go by, and takes the plain rate
    options = [f"--optim.name={name}", f"--optim.lr={rate}", "--optim.lr_scaling=none", "--train.steps=30"]
    options += ["--train.eval_every=20", "--log.every=1", "--train.micro_batch=32"]
    cfg = config("--run.name=whole", *options)
    if name == "muon" and not any(p.ndim == 2 for p in _blocks(cfg)):
        with pytest.raises(UserError, match="optim.name=muon works on 2-D weights"):
            train(cfg, world)
        return
    train(cfg, world)
    found = losses(tmp_path / "whole")
    assert stuck or sum(found[-5:]) < 0.93 * sum(found[:5])
    train(config("--run.name=cut", *options), world)
    (tmp_path / "cut/checkpoints/step-00000030/manifest.json").unlink()
    with pytest.warns(UserWarning, match="skipping"):
        train(config("--run.name=cut", "--run.resume=auto", *options), world)
    assert losses(tmp_path / "cut") == found


def _begins_at_zero(cfg: Config) -> bool:
    net = model.build(cfg.model, data.load(cfg.data).spec)
    return any(parameter.ndim >= 2 and not parameter.any() for parameter in net.parameters())


def _blocks(cfg: Config) -> list[nn.Parameter]:
    net: Any = model.build(cfg.model, data.load(cfg.data).spec)
    return list(blocks_of(net).parameters())


def test_a_missing_package_names_its_install_command(
    config: Callable[..., Config], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(UserError, match=r"optim.name=lamb .*: pip install pytorch_optimizer"):
        train(config("--optim.name=lamb"), world)
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(UserError, match="pip install torchao"):
        fp8.convert(nn.Module())


def test_fp8_takes_the_layers_of_fitting_sizes_and_follows_bf16() -> None:
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 40), nn.Linear(40, 16))
            self.head = nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.head(self.blocks(x))
            return y

    net, inputs = Net(), torch.randn(64, 32)
    names = list(net.state_dict())
    with torch.autocast("cpu", torch.bfloat16):
        before = net(inputs)
    fp8.convert(net, emulate=True)
    kinds = [type(layer).__name__ for layer in [*net.blocks, net.head]]
    assert kinds == ["Float8Linear", "GELU", "Linear", "Linear", "Linear"]
    with torch.autocast("cpu", torch.bfloat16):
        after = net(inputs)
    after.sum().backward()
    assert list(net.state_dict()) == names
    assert {p.grad.dtype for p in net.parameters() if p.grad is not None} == {torch.float32}
    difference = ((after - before).norm() / before.norm()).item()
    assert 0 < difference < 0.1
    net.blocks = nn.Sequential(nn.Linear(10, 10))
    with pytest.raises(UserError, match="multiples of 16, and there are none: use bf16"):
        fp8.convert(net)
