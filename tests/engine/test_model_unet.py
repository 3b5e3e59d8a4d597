"""The U-Net: metrics against scikit-learn, skip connections."""

from typing import Any

import pytest
import torch
from engine import Package
from sklearn.metrics import accuracy_score, jaccard_score

MODEL = "unet"


def build(p: Any, classes: int, **values: Any) -> Any:
    torch.manual_seed(0)
    spec = p.data.Spec(
        1,
        32,
        tuple(map(str, range(classes))),
        (0.5,),
        (0.25,),
    )
    return p.model.build(p.model.ModelConfig(**values), spec)


def test_metrics_equal_those_of_scikit_learn(p: Package) -> None:
    net = build(p, 6).eval()
    images = torch.randn(3, 1, 32, 32)
    masks = torch.randint(0, 4, (3, 32, 32))
    masks[:, :5] = 255
    with torch.no_grad():
        net.head.get_parameter("bias")[5] = -1e6  # class 5 neither occurs nor is predicted
        predicted = net.predict(images).argmax(1)
        (_, metrics) = net(images, masks)
    y_true = masks[masks != 255].numpy()
    y_pred = predicted[masks != 255].numpy()
    hits, unions = metrics["iou"]
    present = unions > 0
    assert present.tolist()[-1] is False
    expected = jaccard_score(
        y_true, y_pred, average="macro", labels=present.nonzero().flatten().numpy()
    )
    assert (hits[present] / unions[present]).mean().item() == pytest.approx(expected, rel=1e-6)
    correct, count = metrics["accuracy"]
    assert int(correct) / int(count) == pytest.approx(accuracy_score(y_true, y_pred))


def test_a_batch_of_ignored_pixels_has_no_loss_no_gradient_and_no_count(
    p: Package,
) -> None:
    net = build(p, 3).eval()
    batch = (torch.randn(2, 1, 32, 32), torch.full((2, 32, 32), 255))
    loss, metrics = p.loss.compute_loss(net, batch)
    loss.backward()
    assert loss.item() == 0
    assert not any(weight.grad.any() for weight in net.parameters())
    assert [float(part) for part in metrics["loss"]] == [0, 0]
    assert int(metrics["accuracy"][1]) == 0
    assert not metrics["iou"][1].any()


def test_skip_connections_carry_detail(p: Package) -> None:
    """The output depends on the pixels even when the up-convolutions are zero."""
    net = build(p, 3).eval()
    with torch.no_grad():
        for up in net.ups:
            up.get_parameter("weight").zero_()
        logits = net.predict(torch.rand(1, 1, 32, 32))
    assert logits.std((2, 3)).min() > 1e-3
