"""What the data must provide: a `Spec` that a checkpoint can keep, refused before anything is trained."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ..contracts import check_data, in_memory, loss_and_metrics, problems
from ..errors import UserError

pytestmark = pytest.mark.fast


@dataclass(frozen=True)
class Spec:
    """What a test gives the model to know."""

    value: Any


MODULE: Any = SimpleNamespace(Spec=Spec)


def found(spec: object) -> Any:
    return SimpleNamespace(train=[], val=[], spec=spec)


@pytest.mark.parametrize(
    "value", [1, 0.5, float("nan"), True, None, "a", (), (1, ("a", (2.0, None))), [1, 2], {"a": (1,)}]
)
def test_spec_of_plain_values_is_taken(value: object) -> None:
    check_data(MODULE, found(Spec(value)))


@pytest.mark.parametrize("value", [{1}, {1: "a"}, b"a", Path("a"), Spec(1), (1, Path("a"))], ids=repr)
def test_spec_that_no_checkpoint_restores_is_refused(value: object) -> None:
    with pytest.raises(
        UserError, match=rf"keep Spec.value, a {type(value).__name__}: make it a number, a string, or a"
    ):
        check_data(MODULE, found(Spec(value)))


@pytest.mark.parametrize(("module", "spec"), [(MODULE, {"value": 1}), (MODULE, Spec), (SimpleNamespace(), Spec(1))])
def test_spec_must_be_the_dataclass_of_data_py(module: Any, spec: object) -> None:
    with pytest.raises(UserError, match="it must be an object of a dataclass named `Spec` in data.py"):
        check_data(module, found(spec))


@pytest.mark.parametrize(
    ("output", "what"),
    [
        (torch.ones(()), r"a tensor of shape \(\): "),
        ((torch.ones(3), {"loss": 0}), r"a tuple of a tensor of shape \(3,\), a dict with 'loss': "),
        ((torch.ones(()), {"accuracy": 0}), r".*, a dict with 'accuracy': "),
        ((torch.ones(()), None), ".*, None: "),
        ((0.5, {"loss": 0}), "a tuple of 0.5, a dict"),
        ((torch.ones(()), {"loss": 0}, 2), ".* a dict with 'loss', 2: "),
    ],
)
def test_forward_must_return_a_loss_and_metrics(output: Any, what: str) -> None:
    with pytest.raises(UserError, match=f"^forward of the model returns {what}"):
        loss_and_metrics(lambda x: output, 1)


def test_forward_must_take_the_batch() -> None:
    class Network(nn.Module):
        def forward(self, numbers: Tensor) -> Any:
            return numbers + None  # type: ignore[operator]

    x = torch.ones(2)
    for batch in ({"numbers": x, "name": x}, (x, x), {}):
        with pytest.raises(UserError, match="forward of the model does not take what `Prepare` returns .*argument"):
            loss_and_metrics(Network(), batch)
    with pytest.raises(TypeError, match="unsupported operand"):
        loss_and_metrics(Network(), (x,))


def test_what_is_optional_may_be_missing() -> None:
    assert (in_memory(found(Spec(1))), problems(found(Spec(1)))) == (False, ())
