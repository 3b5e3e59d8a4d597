"""The options of speed and loading reach torch, and `auto` follows the device."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from .. import speed
from ..config import Config, LoaderConfig, SpeedConfig
from ..distributed import World
from ..errors import UserError
from ..loaders import Loader

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("able", "expected"), [({"avx512_bf16": True}, "bf16"), ({"amx_bf16": True}, "bf16"), ({}, "fp32")]
)
def test_auto_precision_is_bf16_on_cpus_that_support_it(
    monkeypatch: pytest.MonkeyPatch, able: dict[str, bool], expected: str
) -> None:
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: able)
    assert speed.best_format(CPU) == expected


@pytest.mark.parametrize(("fp64", "expected"), [(True, "bf16, fp16, fp32"), (False, "bf16, fp32")])
def test_refused_format_names_those_of_the_device(
    config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, fp64: bool, expected: str
) -> None:
    """The gradient scaler of fp16 needs fp64, which some of Intel's GPUs lack."""
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda device: SimpleNamespace(has_fp64=fp64))
    for wanted in ("tf32", "fp8", "fp16")[: 2 if fp64 else 3]:
        with pytest.raises(UserError, match=f"is {wanted}: this run is on xpu:0, which supports {expected}; use"):
            speed.setup(config(f"--speed.precision={wanted}"), torch.device("xpu", 0))


@pytest.fixture
def restored_precision() -> Iterator[None]:
    """Restore torch's global options for TF32."""
    yield
    torch.set_float32_matmul_precision("highest")
    cudnn: Any = torch.backends.cudnn
    cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    cudnn.fp32_precision = "none"
    cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = "tf32"


@pytest.mark.usefixtures("restored_precision")
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_all_precision_getters_agree(
    config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    """Lightning and inductor read the legacy ones, which raise an error if they do not agree with the new ones."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    speed.setup(config(f"--speed.precision={precision}"), torch.device("cuda", 0))
    tf32, full = precision != "fp32", "ieee" if precision == "fp32" else "tf32"
    cudnn: Any = torch.backends.cudnn
    assert torch.get_float32_matmul_precision() == ("high" if tf32 else "highest")
    assert torch.backends.cuda.matmul.allow_tf32 == tf32
    assert cudnn.allow_tf32 == tf32
    assert {torch.backends.cuda.matmul.fp32_precision, cudnn.fp32_precision} == {full}
    assert {cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision} == {full}
    with cudnn.flags(enabled=False):  # reads and restores them
        pass
    assert cudnn.allow_tf32 == tf32


@pytest.mark.parametrize(("value", "expected"), [(True, True), (False, False), ("auto", False)])
def test_channels_last_option_sets_the_memory_format(value: Any, expected: bool) -> None:
    net = speed.place(nn.Conv2d(4, 4, 3), SpeedConfig(channels_last=value), CPU)
    weight = next(net.parameters())
    assert weight.is_contiguous(memory_format=torch.channels_last) == expected


def test_compile_options_reach_torch(
    config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[dict[str, Any]] = []

    def note(net: nn.Module, **how: Any) -> nn.Module:
        asked.append(how)
        return net

    monkeypatch.setattr(torch, "compile", note)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for where, folder in (("user", tmp_path / "cache/torchinductor"), ("run", tmp_path / ".compiled")):
        monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
        cfg = config("--speed.compile=model", f"--speed.compile_cache={where}", "--speed.compile_mode=max-autotune")
        speed.setup(cfg, CPU)
        speed.compiled(nn.Linear(1, 1), cfg.speed)
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    assert asked == [{"dynamic": False, "mode": "max-autotune"}] * 2
    speed.compiled(nn.Linear(1, 1), SpeedConfig())
    assert len(asked) == 2, "off is off"


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_loader_options_reach_torch(world: World) -> None:
    cfg = LoaderConfig(prefetch_factor=5, persistent_workers=False)
    loader: Any = Loader([1], [[0]], cfg, 1, world).loader  # type: ignore[arg-type]
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (1, 5, False)
    loader = Loader([1], [[0]], LoaderConfig(), 2, world).loader  # type: ignore[arg-type]
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (2, 2, True)
    seeds = {
        Loader([1], [[0]], cfg, 1, World(rank, 2, CPU), seed).loader.generator.initial_seed()  # type: ignore
        for rank in (0, 1)
        for seed in (0, 1)
    }
    assert len(seeds) == 4, "workers are seeded by run.seed and rank"


@pytest.mark.gpu("cuda")
@pytest.mark.parametrize("on", [True, False])
def test_options_reach_cuda(config: Callable[..., Config], on: bool) -> None:
    switch = str(on).lower()
    cfg = config(f"--speed.cudnn_benchmark={switch}", f"--loader.side_stream={switch}", f"--loader.pin_memory={switch}")
    gpu = torch.device("cuda", 0)
    speed.setup(cfg, gpu)
    assert torch.backends.cudnn.benchmark == on

    class Ones:
        def __len__(self) -> int:
            return 8

        def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, ...]:
            return (torch.tensor(indices),)

    loader = Loader(Ones(), [[0, 1], [2, 3], [4, 5]], cfg.loader, 0, World(0, 1, gpu))
    assert [batch[0].tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
    for workers in (0, 1):
        other = Loader(Ones(), [[0, 1], [2, 3]], cfg.loader, workers, World(0, 1, gpu))
        loaded: Any = other.loader or map(other._load, other.order)
        assert {batch[0].is_pinned() for batch in loaded} == {on}
