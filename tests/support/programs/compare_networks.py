"""Compare the networks of rendered projects with those of transformers: PACKAGES MODEL=SRC [...].

PACKAGES is the folder where transformers is installed, SRC that of a project's package. Prints the largest difference
of the outputs and of the gradients, relative to the largest value, with the same weights in float64. Settings that are
not passed on are transformers' defaults, those of the published networks.
"""

import importlib
import json
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, sys.argv[1])
transformers: Any = importlib.import_module("transformers")
Case = tuple[Any, Any, "Translate", Tensor | tuple[Tensor, ...], Tensor]
"""Our network, the reference, the names, and a batch: the inputs, one or several, and the targets."""
Translate = Callable[[str, Tensor], dict[str, Tensor]]
"""From a name and value of ours to those of the reference."""


def renamed(name: str, pairs: dict[str, str]) -> str:
    """Replace each whole part of a dotted name."""
    for ours, theirs in pairs.items():
        name = re.sub(rf"(^|\.){ours}(?=\.|$)", rf"\g<1>{theirs}", name)
    return name


def gpt(data: Any, model: Any) -> Case:
    """GPT-2, with a vocabulary that we pad."""
    cfg = model.ModelConfig(depth=2, width=64, heads=4, positions="learned")
    net = model.build(cfg, data.Spec(vocabulary=65, context=32))
    config = transformers.GPT2Config(vocab_size=65, n_positions=32, n_embd=64, n_layer=2, n_head=4)
    parts = {"tokens": "transformer.wte", "positions": "transformer.wpe", "head": "lm_head", "norm": "transformer.ln_f"}
    parts |= {"blocks": "transformer.h", "norm1": "ln_1", "norm2": "ln_2", "attention.qkv": "attn.c_attn"}
    parts |= {"attention.out": "attn.c_proj", "widen": "mlp.c_fc", "narrow": "mlp.c_proj"}

    def translate(name: str, value: Tensor) -> dict[str, Tensor]:
        if name in ("tokens.weight", "head.weight"):
            value = value[:65]
        elif value.ndim == 2 and name.startswith("blocks"):
            value = value.T  # transformers multiplies from the other side
        return {renamed(name, parts): value}

    tokens = torch.randint(0, 65, (2, 3, 32))
    return net, transformers.GPT2LMHeadModel(config), translate, tokens[0], tokens[1]


def vit(data: Any, model: Any) -> Case:
    """The vision transformer; the epsilon of 1e-6 is that of google-research/vision_transformer and of timm."""
    cfg = model.ModelConfig(patch=4, depth=2, width=64, heads=4)
    net = model.build(cfg, data.Spec(3, 16, tuple("0123456789"), (0.5,) * 3, (0.25,) * 3))
    config = transformers.ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256,
        image_size=16, patch_size=4, num_labels=10, layer_norm_eps=1e-6,
    )  # fmt: skip
    parts = {"cut": "vit.embeddings.patch_embeddings.projection", "summary": "vit.embeddings.cls_token"}
    parts |= {"positions": "vit.embeddings.position_embeddings", "norm": "vit.layernorm", "head": "classifier"}
    parts |= {"blocks": "vit.layers", "norm1": "layernorm_before", "norm2": "layernorm_after"}
    parts |= {"out": "attention.o_proj", "widen": "mlp.fc1", "narrow": "mlp.fc2"}

    def translate(name: str, value: Tensor) -> dict[str, Tensor]:
        name = renamed(name, parts)
        if ".qkv." not in name:
            return {name: value}
        named = zip("qkv", value.chunk(3), strict=True)
        return {name.replace("qkv", f"attention.{letter}_proj"): part for letter, part in named}

    images, labels = torch.randn(4, 3, 16, 16, dtype=torch.float64), torch.randint(0, 10, (4,))
    return net, transformers.ViTForImageClassification(config), translate, images, labels


def resnet(data: Any, model: Any, block: str = "basic") -> Case:
    """The residual network for large images, whose bottleneck has its stride in the 3 x 3 convolution."""
    depths = (2, 3)
    places = [f"{stage}.layers.{position}" for stage, depth in enumerate(depths) for position in range(depth)]
    cfg = model.ModelConfig(width=16, depths=depths, block=block, stem="7x7")
    net = model.build(cfg, data.Spec(3, 64, tuple("0123456789"), (0.5,) * 3, (0.25,) * 3))
    outputs = 64 if block == "bottleneck" else 16
    config = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[outputs, 2 * outputs], depths=depths, layer_type=block, num_labels=10
    )
    parts = {"head": "classifier.1", "stem": "resnet.embedder.embedder"}

    def translate(name: str, value: Tensor) -> dict[str, Tensor]:
        name = re.sub(r"(stem|layers\.\d+|shortcut)\.0\.", r"\1.convolution.", name)
        name = re.sub(r"(stem|layers\.\d+|shortcut)\.1\.", r"\1.normalization.", name).replace("layers", "layer")
        name = re.sub(r"blocks\.(\d+)", lambda found: f"resnet.encoder.stages.{places[int(found[1])]}", name)
        return {renamed(name, parts): value}

    images, labels = torch.randn(4, 3, 64, 64, dtype=torch.float64), torch.randint(0, 10, (4,))
    return net, transformers.ResNetForImageClassification(config), translate, images, labels


def bert(data: Any, model: Any) -> Case:
    """BERT, whose parameters have the names that they have in transformers; one text has no padding."""
    cfg = model.ModelConfig(depth=2, width=64, heads=4, dropout=0.0)
    net = model.build(cfg, data.Spec(65, 16, tuple("0123456789"), ""))
    config = transformers.BertConfig(
        vocab_size=65, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256,
        max_position_embeddings=16, num_labels=10,
    )  # fmt: skip
    torch.manual_seed(1)  # weights for which the gradients are well-conditioned, whatever was compared before
    tokens, labels = torch.randint(0, 65, (4, 16)), torch.arange(4)
    mask = torch.arange(16) < torch.tensor([[16], [9], [5], [2]])
    return net, transformers.BertForSequenceClassification(config), lambda *named: dict([named]), (tokens, mask), labels


@torch.no_grad()
def largest(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """Return the largest difference, relative to the largest value."""
    assert ours.keys() == theirs.keys(), sorted(ours.keys() ^ theirs.keys())
    difference = max((ours[name] - theirs[name]).abs().max() for name in ours)
    return float(difference / max(value.abs().max() for value in theirs.values()))


def compare(
    net: Any, reference: Any, translate: Translate, batch: Tensor | tuple[Tensor, ...], targets: Tensor
) -> dict[str, float]:
    """Compare in training, without dropout, and networks with BatchNorm in validation, too."""
    inputs = batch if isinstance(batch, tuple) else (batch,)
    net.double()
    reference.double().eval()
    for module in reference.modules():
        module.train(isinstance(module, nn.BatchNorm2d))
    for parameter in net.parameters():  # none stays at 0 or 1
        nn.init.normal_(parameter, mean=0.1, std=0.1)

    def translated(named: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: value for ours in named.items() for name, value in translate(*ours).items()}

    reference.load_state_dict(translated(net.state_dict()))
    logits, expected = net.predict(*inputs), reference(*inputs).logits
    found = {"outputs": largest({"": logits}, {"": expected})}
    net(*inputs, targets)[0].backward()
    F.cross_entropy(expected.flatten(0, -2), targets.flatten()).backward()
    ours, theirs = ({name: value.grad for name, value in each.named_parameters()} for each in (net, reference))
    found["gradients"] = largest(translated(ours), theirs)
    if list(net.buffers()):
        reference(*inputs)  # as many batches as ours has had
        expected = reference.eval()(*inputs).logits
        found["validation"] = largest({"": net.eval().predict(*inputs)}, {"": expected})
    return found


CASES: dict[str, list[Callable[[Any, Any], Case]]] = {
    "gpt": [gpt],
    "resnet": [resnet, partial(resnet, block="bottleneck")],
    "vit": [vit],
    "bert": [bert],
}


def main() -> None:
    """Compare each, with its project's package in place of the previous one's."""
    torch.manual_seed(0)
    results = {}
    for argument in sys.argv[2:]:
        name, _, source = argument.partition("=")
        sys.path.insert(0, source)
        for loaded in [module for module in sys.modules if module.split(".")[0] == "proj"]:
            del sys.modules[loaded]
        modules = [importlib.import_module(f"proj.{module}") for module in ("data", "model")]
        results[name] = [compare(*case(*modules)) for case in CASES[name]]
    print(json.dumps(results))


main()
