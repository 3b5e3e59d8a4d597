"""BERT against transformers, whose parameters have the same names, in float64."""

import importlib

import pytest
import torch
import torch.nn.functional as F
from engine import Package

MODEL = "bert"


def test_outputs_and_gradients_are_those_of_transformers(p: Package) -> None:
    transformers = importlib.import_module("transformers")
    cfg = p.model.ModelConfig(
        depth=2,
        width=64,
        heads=4,
        dropout=0.0,
    )
    net = p.model.build(cfg, p.data.Spec(65, 16, tuple("0123456789"), "")).double()
    config = transformers.BertConfig(
        vocab_size=65,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=16,
        num_labels=10,
    )
    reference = transformers.BertForSequenceClassification(config).double().eval()
    torch.manual_seed(1)
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, mean=0.1, std=0.1)
    reference.load_state_dict(net.state_dict())
    tokens = torch.randint(0, 65, (4, 16))
    labels = torch.arange(4)
    mask = torch.arange(16) < torch.tensor(
        [
            [16],
            [9],
            [5],
            [2],
        ]
    )
    logits = reference(tokens, mask).logits
    torch.testing.assert_close(net.predict(tokens, mask), logits)
    net(tokens, mask, labels)[0].backward()
    F.cross_entropy(logits, labels).backward()
    theirs = {name: parameter.grad for name, parameter in reference.named_parameters()}
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name])


@pytest.mark.parametrize(
    ("positions", "rows"),
    [
        (0, 16),
        (8, 16),
        (32, 32),
    ],
)
def test_there_is_a_position_for_each_token(p: Package, positions: int, rows: int) -> None:
    cfg = p.model.ModelConfig(positions=positions)
    net = p.model.build(
        cfg,
        p.data.Spec(
            300,
            16,
            ("a", "b"),
            "",
        ),
    )
    state = net.state_dict()
    assert len(state["bert.embeddings.position_embeddings.weight"]) == rows
    assert not any(name.startswith("blocks") for name in state)
    assert len(list(net.blocks.children())) == 2
