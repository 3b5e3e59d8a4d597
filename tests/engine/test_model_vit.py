"""The vision transformer: attention against torch, initialization, and names of weights."""

from typing import Any

import pytest
import torch
from engine import Package
from torch import nn

MODEL = "vit"

KINDS = ("weight", "bias")


def build(p: Any, **values: Any) -> Any:
    torch.manual_seed(0)
    return p.model.build(
        p.model.ModelConfig(**values),
        p.data.Spec(
            1,
            8,
            ("a", "b"),
            (0.3,),
            (0.38,),
        ),
    )


def test_block_equals_torch_encoder_layer(p: Package) -> None:
    block = build(p).blocks[0].eval()
    layer = nn.TransformerEncoderLayer(
        64, 2, 256, 0.0, nn.functional.gelu, 1e-6, batch_first=True, norm_first=True
    )
    names = {
        "norm1": "norm1",
        "norm2": "norm2",
        "out": "self_attn.out_proj",
        "widen": "linear1",
        "narrow": "linear2",
    }
    state = {}
    for old, new in names.items():
        for kind in KINDS:
            state[f"{new}.{kind}"] = getattr(block, old).get_parameter(kind)
    state |= {f"self_attn.in_proj_{kind}": block.qkv.get_parameter(kind) for kind in KINDS}
    layer.load_state_dict(state)
    x = torch.randn(3, 17, 64)
    torch.testing.assert_close(
        block(x),
        layer.train()(x),
        rtol=1e-4,
        atol=1e-5,
    )


def test_initial_scales_are_those_of_the_papers_code(p: Package) -> None:
    net = build(p, width=256, heads=4)
    bound = (6 / (256 + 256)) ** 0.5
    for part in net.blocks[0].qkv.weight.chunk(3):
        assert part.abs().max().item() == pytest.approx(bound, rel=0.01)
    assert net.cut.weight.std().item() == pytest.approx(0.5, rel=0.1)  # a patch has 4 pixels
    assert net.positions.std().item() == pytest.approx(0.5, rel=0.1)
    assert not net.head.weight.any()


def test_class_token_and_positions_have_no_weight_decay(p: Package) -> None:
    net = build(p)
    optimizer = p.optim.adamw(net, p.config.OptimConfig(weight_decay=0.1))
    decayed, rest = optimizer.param_groups
    names = {parameter: name for name, parameter in net.named_parameters()}
    assert "cut.weight" in [names[parameter] for parameter in decayed["params"]]
    exempt = {names[parameter] for parameter in rest["params"]}
    assert {"summary", "positions"} <= exempt
