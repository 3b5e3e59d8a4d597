"""Each block is compiled; with the compiler's graphs run in eager mode, as generating code takes much longer."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from .. import train as program
from ..data import DataConfig
from ..errors import UserError
from ..model import ModelConfig, build
from .support import load_all, rows, state, train_here

SHORT = ("--train.steps=2", "--train.eval_every=2", "--log.every=1")
ENABLED = "--regional_compile.enabled=true"
MODEL: Any = build(ModelConfig(), load_all(DataConfig())[2])
REASON = getattr(MODEL, "no_compile_reason", "")
compiles = pytest.mark.skipif(bool(REASON), reason=REASON)


@pytest.fixture
def compiled() -> Iterator[mock.Mock]:
    """Trace modules as torch.compile does, and run what it traced in eager mode."""
    traced = partial(torch.compile, backend="eager", fullgraph=True)
    with mock.patch.object(
        torch, "compile", side_effect=lambda call, **options: traced(call)
    ) as calls:
        yield calls


@compiles
def test_each_block_is_compiled_and_training_does_not_change(
    tmp_path: Path, compiled: mock.Mock
) -> None:
    train_here(tmp_path / "eager", *SHORT)
    compiled.assert_not_called()
    train_here(tmp_path / "compiled", *SHORT, ENABLED)
    assert compiled.call_count == len(list(MODEL.blocks))
    assert all(
        call.kwargs == {"dynamic": False, "mode": "default"} for call in compiled.call_args_list
    )
    torch.testing.assert_close(
        state(tmp_path / "compiled")["model"], state(tmp_path / "eager")["model"]
    )
    for split in ("train", "val"):
        for row, other in zip(
            *(rows(tmp_path / name, split) for name in ("compiled", "eager")), strict=True
        ):
            assert row["loss"] == pytest.approx(other["loss"], rel=1e-5)


@compiles
@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated"
)  # on the compiler's first import
@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            "--speed.compile=model",
            "speed.compile is model: regional_compile.enabled compiles the blocks already",
        ),
        (
            "--speed.compile_mode=reduce-overhead",
            "reduce-overhead: the CUDA graphs of the blocks would share",
        ),
    ],
)
def test_other_options_of_the_compiler_are_refused(
    tmp_path: Path, option: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        train_here(tmp_path, ENABLED, option)


@pytest.mark.parametrize(
    ("attribute", "message"), [("", "has no `blocks`: put its"), ("a reason", "compiled: a reason")]
)
def test_model_that_cannot_be_compiled_is_refused(
    tmp_path: Path, attribute: str, message: str
) -> None:
    class Net(nn.Linear):
        no_compile_reason = attribute

    with (
        mock.patch.object(program, "build", return_value=Net(1, 1)),
        pytest.raises(UserError, match=message),
    ):
        train_here(tmp_path, ENABLED)
