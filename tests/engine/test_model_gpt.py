"""The GPT against transformers, with the same weights in float64."""

import importlib
import re

import torch
import torch.nn.functional as F
from engine import Package
from torch import Tensor

MODEL = "gpt"

PARTS = {
    "tokens": "transformer.wte",
    "positions": "transformer.wpe",
    "head": "lm_head",
    "norm": "transformer.ln_f",
}
PARTS |= {
    "blocks": "transformer.h",
    "norm1": "ln_1",
    "norm2": "ln_2",
    "attention.qkv": "attn.c_attn",
}
PARTS |= {"attention.out": "attn.c_proj", "widen": "mlp.c_fc", "narrow": "mlp.c_proj"}


def translated(named: dict[str, Tensor]) -> dict[str, Tensor]:
    """Turn names and values of ours into those of transformers' GPT-2."""
    found = {}
    for ours, value in named.items():
        name = ours
        for part, theirs in PARTS.items():
            name = re.sub(rf"(^|\.){part}(?=\.|$)", rf"\g<1>{theirs}", name)
        if ours in ("tokens.weight", "head.weight"):
            found[name] = value[:65]  # without our padding of the vocabulary
        else:
            found[name] = value.T if value.ndim == 2 and ours.startswith("blocks") else value
    return found


def test_outputs_and_gradients_are_those_of_transformers(p: Package) -> None:
    transformers = importlib.import_module("transformers")
    cfg = p.model.ModelConfig(
        depth=2,
        width=64,
        heads=4,
        positions="learned",
    )
    net = p.model.build(cfg, p.data.Spec(vocabulary=65, context=32)).double()
    config = transformers.GPT2Config(
        vocab_size=65,
        n_positions=32,
        n_embd=64,
        n_layer=2,
        n_head=4,
    )
    reference = transformers.GPT2LMHeadModel(config).double().eval()
    torch.manual_seed(0)
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, mean=0.1, std=0.1)
    reference.load_state_dict(translated(net.state_dict()))
    tokens, targets = torch.randint(
        0,
        65,
        (2, 3, 32),
    )
    logits = reference(tokens).logits
    torch.testing.assert_close(net.predict(tokens), logits)
    net(tokens, targets)[0].backward()
    F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    gradients = {name: parameter.grad for name, parameter in net.named_parameters()}
    theirs = {name: parameter.grad for name, parameter in reference.named_parameters()}
    for name, gradient in translated(gradients).items():
        torch.testing.assert_close(gradient, theirs[name])


def test_learned_positions_and_causality(p: Package) -> None:
    torch.manual_seed(0)
    cfg = p.model.ModelConfig(positions="learned")
    net = p.model.build(cfg, p.data.Spec(vocabulary=256, context=32)).eval()
    tokens = torch.randint(0, 256, (2, 32))
    changed = tokens.clone()
    changed[:, 20:] = 255 - tokens[:, 20:]
    torch.testing.assert_close(net.predict(tokens)[:, :20], net.predict(changed)[:, :20])


def test_a_loss_in_chunks_is_the_same(p: Package) -> None:
    tokens, targets = torch.randint(0, 1000, (2, 5, 32))
    results = []
    for chunks in (1, 7):
        torch.manual_seed(0)
        cfg = p.model.ModelConfig(loss_chunks=chunks)
        net = p.model.build(cfg, p.data.Spec(vocabulary=1000, context=32))
        loss, metrics = net(tokens, targets)
        loss.backward()
        gradients = [parameter.grad for parameter in net.parameters()]
        results.append([loss, metrics["bits_per_byte"][0], *gradients])
    torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=1e-5)
