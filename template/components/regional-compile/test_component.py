"""Each block is compiled; the compiler's graphs run in eager mode, which is faster to start."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn

from .. import train as program
from ..contracts import blocks
from ..data import DataConfig
from ..errors import UserError
from ..model import ModelConfig, build
from .support import load_all, state, train_here

SHORT = ("--train.steps=2", "--train.eval_every=2", "--log.every=1")
ENABLED = "--regional_compile.enabled=true"


@pytest.fixture
def compiled() -> Iterator[mock.Mock]:
    """Trace modules as torch.compile does, and run what it traced in eager mode."""
    trace = partial(torch.compile, backend="eager", fullgraph=True)
    with mock.patch.object(torch, "compile", side_effect=lambda call, **_: trace(call)) as calls:
        yield calls


def test_each_block_is_compiled_and_training_does_not_change(
    tmp_path: Path, compiled: mock.Mock
) -> None:
    model = build(ModelConfig(), load_all(DataConfig())[2])
    reason = getattr(model, "no_compile_reason", "")
    if reason:
        pytest.skip(f"needs another model: {reason}")
    train_here(tmp_path / "eager", *SHORT)
    compiled.assert_not_called()
    train_here(tmp_path / "compiled", *SHORT, ENABLED)
    assert compiled.call_count == len(blocks(model))
    for call in compiled.call_args_list:
        assert call.kwargs == {"dynamic": False, "mode": "default"}
    weights = [state(tmp_path / name)["model"] for name in ("compiled", "eager")]
    torch.testing.assert_close(*weights)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_compiling_the_whole_model_as_well_is_refused(tmp_path: Path) -> None:
    message = "speed.compile is model: regional_compile.enabled compiles the blocks already"
    with pytest.raises(UserError, match=message):
        train_here(tmp_path, ENABLED, "--speed.compile=model")


@pytest.mark.parametrize(
    ("attribute", "message"), [("", "has no `blocks`: put its"), ("a reason", "compiled: a reason")]
)
def test_model_that_cannot_be_compiled_is_refused(
    tmp_path: Path, attribute: str, message: str
) -> None:
    class Net(nn.Linear):
        no_compile_reason = attribute

    built = mock.patch.object(program, "build", return_value=Net(1, 1))
    with built, pytest.raises(UserError, match=message):
        train_here(tmp_path, ENABLED)
