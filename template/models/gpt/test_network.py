"""The GPT: parameter counts, causality, initialization and config errors.

Delete this file together with the example's model.py: nothing else needs it.
"""

from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..data import Spec
from ..errors import UserError
from ..model import ModelConfig, build

pytestmark = pytest.mark.fast


def spec_of(vocabulary: int, context: int) -> Spec:
    return Spec(vocabulary=vocabulary, context=context)


@pytest.mark.parametrize(("size", "published"), [("124M", 124_439_808), ("355M", 354_823_168)])
def test_sizes_have_the_published_parameter_counts(size: Literal["124M", "355M"], published: int) -> None:
    """Those of GPT-2 small and medium by OpenAI, plus our 47 rows of padding in the embedding."""
    cfg = ModelConfig(size=size)
    with torch.device("meta"):
        net = build(cfg, spec_of(50257, 1024))
    assert sum(parameter.numel() for parameter in net.parameters()) == published + 47 * cfg.width
    assert net.predict(torch.zeros(1, 16, dtype=torch.int64, device="meta")).shape == (1, 16, 50257)


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_predictions_do_not_depend_on_later_tokens(positions: Literal["rotary", "learned"]) -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(positions=positions), spec_of(256, 32)).eval()
    tokens = torch.randint(0, 256, (2, 32))
    changed = tokens.clone()
    changed[:, 20:] = torch.randint(0, 256, (2, 12))
    with torch.no_grad():
        original, other = net.predict(tokens), net.predict(changed)
    torch.testing.assert_close(original[:, :20], other[:, :20])
    assert not torch.allclose(original[:, 20:], other[:, 20:])


def test_untrained_loss_is_that_of_a_uniform_prediction() -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(), spec_of(256, 32)).eval()
    tokens = torch.randint(0, 256, (8, 33))
    _, metrics = net(tokens[:, :-1], tokens[:, 1:])
    total, count = metrics["bits_per_byte"]
    assert float(total) / count == pytest.approx(8, abs=0.3)


@pytest.mark.parametrize("chunk", [None, 32])
def test_padding_of_the_vocabulary_is_neither_trained_nor_counted(chunk: int | None) -> None:
    torch.manual_seed(0)
    net = build(ModelConfig(label_smoothing=0.1, loss_chunk=chunk), spec_of(65, 32))
    tokens, targets = torch.randint(0, 65, (2, 4, 32))
    logs = net.predict(tokens).log_softmax(-1)
    own, mean = logs.gather(-1, targets.unsqueeze(-1)).mean(), logs.mean()
    loss, _ = net(tokens, targets)
    torch.testing.assert_close(loss, -(0.9 * own + 0.1 * mean))
    loss.backward()
    gradient = net.head.weight.grad
    assert gradient is not None
    assert gradient.shape[0] == 128
    assert (gradient[:65] != 0).any(1).all()
    assert not gradient[65:].any()
    nats, count = net.eval()(tokens, targets)[1]["loss"]
    torch.testing.assert_close(nats / count, -own)


class Largest(TorchDispatchMode):
    """Notes the most elements of a tensor that an operation returns."""

    elements = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = operation(*args, **(kwargs or {}))
        sizes = [part.numel() for part in tree_leaves(returned) if isinstance(part, Tensor)]
        self.elements = max([self.elements, *sizes])
        return returned


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_chunked_loss_is_the_same_with_less_memory(smoothing: float) -> None:
    tokens = torch.randint(0, 1000, (4, 33), generator=torch.Generator().manual_seed(0))
    found = []
    for chunk in (None, 32, 50):
        torch.manual_seed(0)
        net = build(ModelConfig(label_smoothing=smoothing, loss_chunk=chunk), spec_of(1000, 32))
        with Largest() as largest:  # type: ignore[no-untyped-call]  # torch's
            loss, metrics = net(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
        found.append((loss, metrics["loss"], [parameter.grad for parameter in net.parameters()], largest.elements))
    whole, *chunked = found
    logits, weights = 4 * 32 * 1024, 1024 * ModelConfig().width
    assert whole[3] == logits
    for each in chunked:
        torch.testing.assert_close(each[:3], whole[:3])
        assert each[3] == weights < logits, "a chunk has fewer logits than the embedding has weights"


def test_gradients_of_chunks_are_summed_in_fp32() -> None:
    """Autocast keeps one bf16 copy of a weight, in which 128 gradients would be summed."""
    tokens = torch.randint(0, 1000, (16, 257), generator=torch.Generator().manual_seed(0))
    found = []
    for chunk, precision in ((None, torch.float32), (None, torch.bfloat16), (32, torch.bfloat16)):
        torch.manual_seed(0)
        net = build(ModelConfig(depth=1, loss_chunk=chunk), spec_of(1000, 256))
        with torch.autocast("cpu", precision, enabled=precision is torch.bfloat16):
            loss, _ = net(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        found.append(net.head.weight.grad)
    exact, whole, chunked = (gradient for gradient in found if gradient is not None)
    assert (chunked - exact).norm() < 1.2 * (whole - exact).norm()


@pytest.mark.parametrize(
    ("values", "key"), [({"width": 12}, "width"), ({"heads": 3}, "heads"), ({"width": 64, "heads": 16}, "heads")]
)
def test_invalid_sizes_are_an_error(values: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=f"model.{key}"):
        ModelConfig(**values)
