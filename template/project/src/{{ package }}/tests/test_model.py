"""The network learns, compiles as one graph, and has no bias before a BatchNorm."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from .. import data, model, optim, techniques
from ..config import Config
from ..contracts import Metrics, call
from ..distributed import World, seeded_generator
from ..errors import UserError
from ..metrics import Meter
from ..train import train
from .conftest import NO_COMPILE

pytestmark = pytest.mark.fast

CPU = torch.device("cpu")


def test_model_overfits_one_batch(config: Callable[..., Config]) -> None:
    torch.manual_seed(0)
    cfg = config()
    samples = techniques.load(cfg.data)
    batch = data.Prepare(samples.spec, cfg.data)(
        samples.train.__getitems__(list(range(8))), False, seeded_generator(torch.device("cpu"), 0, 0, 0)
    )
    net = model.build(cfg.model, samples.spec)
    if hasattr(net, "phases"):
        pytest.skip("the losses of parts that are trained in turn need not fall")
    optimizer = techniques.build_optimizer(net, cfg.optim)
    optim.set_lr(optimizer, cfg.optim.lr, 0.9)

    def run_model() -> tuple[torch.Tensor, Metrics]:
        seeded_generator(CPU, 0, 0, 0)  # noise that a model draws is part of the batch
        answer: tuple[torch.Tensor, Metrics] = call(net, batch)
        return answer

    loss, metrics = run_model()
    first = loss.item()
    target = first / (1.4 if "bits_per_dim" in metrics else 3)  # bits per dimension stay far above 0
    for _ in range(60):
        optimizer.zero_grad()
        loss, metrics = run_model()
        loss.backward()
        optimizer.step()
    idle = [name for name, weight in net.named_parameters() if weight.requires_grad and weight.grad is None]
    assert loss.item() < target, (
        f"60 steps on the same 8 samples changed the loss from {first:.4g} to {loss.item():.4g}, and it should fall "
        f"below {target:.4g}. Check that the targets belong to the inputs, that the loss is the one returned, and that "
        f"optim.lr={cfg.optim.lr:g} suits {cfg.optim.name} and this network: try a tenth of it, and ten times as much. "
        f"If its loss cannot come near 0, change `target`. Parameters without a gradient: {', '.join(idle) or 'none'}."
    )
    meter = Meter(World(0, 1, CPU))
    meter.add({"loss": metrics["loss"]})
    assert meter.read()["loss"] == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.usefixtures("no_print")
def test_model_compiles_as_one_graph(config: Callable[..., Config], world: World) -> None:
    cfg = config()
    samples = techniques.load(cfg.data)
    if NO_COMPILE:
        with pytest.raises(UserError, match="speed.compile is model"):
            train(config("--run.name=a", "--speed.compile=model"), world)
        return
    batch = data.Prepare(samples.spec, cfg.data)(
        samples.train.__getitems__([0, 1]), False, seeded_generator(torch.device("cpu"), 0, 0, 0)
    )
    net = model.build(cfg.model, samples.spec).eval()  # its random numbers would differ
    net.register_forward_pre_hook(lambda *_: print("a model that prints"))
    whole = torch.compile(net, backend="eager", fullgraph=True, dynamic=False)
    torch.testing.assert_close(call(whole, batch)[0], call(net, batch)[0])
    trained = torch.compile(net.train(), backend="eager", fullgraph=True, dynamic=False)
    call(trained, batch)[0].backward()


def test_no_bias_before_batch_norm(config: Callable[..., Config]) -> None:
    cfg = config()
    samples = techniques.load(cfg.data)
    net = model.build(cfg.model, samples.spec)
    made_by: dict[int, nn.Module] = {}
    outputs, seen = [], []

    def note(module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            seen.append(made_by[id(inputs[0])])
        made_by.setdefault(id(output), module)
        outputs.append(output)  # kept, so that its id is not used again

    for module in net.modules():
        module.register_forward_hook(note)
    batch = samples.train.__getitems__([0, 1])
    call(net, data.Prepare(samples.spec, cfg.data)(batch, False, seeded_generator(CPU, 0, 0, 0)))
    assert all(getattr(layer, "bias", None) is None for layer in seen)
    norms = [module for module in net.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert len(seen) == len(norms)
