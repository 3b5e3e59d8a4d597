"""Fine-tuning: files of transformers, frozen parameters in one process and two, rates, resuming."""

import importlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from engine import MakePackage, Package, equal, rows, saved
from safetensors.torch import load_file, save_file
from torch import nn

ON = ["--finetune.enabled=true", "--train.eval_every=3"]
SIX = [*ON, "--train.steps=6"]
TINY = ["--model.kind=batch_norm", "--train.batch_size=8", "--optim.eps=1e-4"]
FROZEN = ['--finetune.freeze=["layers.0","layers.1"]']


def settings(p: Package, **values: Any) -> Any:
    return p.components.finetune.FinetuneConfig(**values)


def bert(p: Package, classes: int = 3) -> Any:
    """Build a small BERT."""
    cfg = p.model.ModelConfig(
        depth=2,
        width=32,
        heads=2,
        positions=16,
        dropout=0.0,
    )
    return p.model.build(cfg, p.data.Spec(50, 8, tuple(map(str, range(classes))), "")).eval()


def hugging_face(kind: str, classes: int = 3) -> Any:
    """Build the same with transformers."""
    transformers = importlib.import_module("transformers")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 128,
    }
    cfg = transformers.BertConfig(
        vocab_size=50, max_position_embeddings=16, num_labels=classes, **sizes
    )
    return getattr(transformers, kind)(cfg).eval()


def test_folder_of_transformers_gives_its_outputs(package: MakePackage, tmp_path: Path) -> None:
    p = package("bert", "finetune")
    theirs = hugging_face("BertForSequenceClassification")
    theirs.save_pretrained(tmp_path, max_shard_size="40KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    ours = bert(p)
    load = p.components.finetune.load
    said = load(ours, tmp_path, settings(p))
    count = len(ours.state_dict())
    assert said == f"finetune: loaded {count} of {count} tensors from {tmp_path}"
    tokens = torch.randint(50, (4, 8))
    mask = torch.ones(4, 8, dtype=torch.bool)
    mask[1, 5:] = False
    expected = theirs(input_ids=tokens, attention_mask=mask.long()).logits
    torch.testing.assert_close(
        ours.predict(tokens, mask),
        expected,
        rtol=1e-4,
        atol=1e-5,
    )


def test_head_of_other_classes_and_old_names_and_a_prefix(
    package: MakePackage, tmp_path: Path
) -> None:
    p = package("bert", "finetune")
    load = p.components.finetune.load
    hugging_face("BertForSequenceClassification", 5).save_pretrained(tmp_path / "five")
    ours = bert(p)
    head = ours.classifier.weight.detach().clone()
    said = load(ours, tmp_path / "five", settings(p))
    assert said.endswith(", 2 of another shape or type (classifier.weight, classifier.bias)")
    assert torch.equal(ours.classifier.weight, head)
    weights = load_file(tmp_path / "five/model.safetensors")
    swapped = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    old = {name: name for name in weights}
    for new, before in swapped.items():
        old = {name: renamed.replace(new, before) for name, renamed in old.items()}
    save_file({old[name]: value for name, value in weights.items()}, tmp_path / "old.safetensors")
    assert "gamma" in str(load_file(tmp_path / "old.safetensors").keys())
    again = bert(p)
    assert (
        load(again, tmp_path / "old.safetensors", settings(p)).split(" from")[0]
        == said.split(" from")[0]
    )
    assert equal(dict(again.bert.state_dict()), dict(ours.bert.state_dict()))
    backbone = hugging_face("BertModel")
    backbone.save_pretrained(tmp_path / "backbone")
    with pytest.raises(
        p.errors.UserError, match=r"nothing fits .it has embeddings.* the model bert.embeddings"
    ):
        load(bert(p), tmp_path / "backbone", settings(p))
    said = load(ours, tmp_path / "backbone", settings(p, add_prefix="bert."))
    assert said.endswith(", 2 missing (classifier.weight, classifier.bias)")
    assert torch.equal(ours.bert["pooler"]["dense"].weight, backbone.pooler.dense.weight)


def test_tied_weight_is_loaded_under_either_name(package: MakePackage, tmp_path: Path) -> None:
    p = package("gpt", "finetune")
    made = [p.model.build(p.model.ModelConfig(), p.data.Spec(30, 16, 1.0)) for _ in range(2)]
    for name in ("tokens.weight", "head.weight"):
        weights = {
            key: value.detach().clone()
            for key, value in made[0].state_dict().items()
            if key != name
        }
        torch.save(weights, tmp_path / "weights.pt")
        nn.init.zeros_(made[1].tokens.weight)
        said = p.components.finetune.load(
            made[1],
            tmp_path / "weights.pt",
            settings(p),
        )
        assert "missing" not in said
        assert equal(made[0].state_dict(), made[1].state_dict())


def test_what_cannot_be_read_is_one_line(package: MakePackage, tmp_path: Path) -> None:
    p = package("mlp", "finetune")
    read = p.components.finetune.read
    refused = p.errors.UserError
    torch.save(nn.Linear(2, 2), tmp_path / "pickled.pt")
    torch.save([torch.ones(2)], tmp_path / "list.pt")
    for name in ("damaged.pt", "damaged.safetensors"):
        (tmp_path / name).write_bytes(b"no weights")
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "gone.safetensors"}})
    )
    for name in ("pickled.pt", "list.pt", "damaged.pt", "damaged.safetensors", ""):
        with pytest.raises(
            refused,
            match=r"^finetune.weights: .* is missing, damaged, or has more than named tensors",
        ):
            read(tmp_path / name)
    with pytest.raises(refused, match="no such file or run"):
        read(tmp_path / "nowhere")


def test_integers_are_not_taken_for_weights(package: MakePackage, tmp_path: Path) -> None:
    p = package("mlp", "finetune")
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    torch.save(
        net.state_dict() | {"0.weight": torch.ones(3, 3, dtype=torch.int8)}, tmp_path / "weights.pt"
    )
    said = p.components.finetune.load(
        net,
        tmp_path / "weights.pt",
        settings(p),
    )
    assert said.endswith("1 of another shape or type (0.weight)")


def test_average_starts_with_the_loaded_weights(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("finetune", "ema")
    p.train_here(tmp_path / "first", *SIX, "--train.steps=2")
    weights = saved(tmp_path / "first")["model"]
    options = [
        f"--finetune.weights={tmp_path / 'first/a'}",
        "--ema.enabled=true",
        "--ema.decay=0.999",
    ]
    p.train_here(tmp_path / "second", *ON, *options, "--train.steps=1", "--optim.lr=1e-12")
    average = saved(tmp_path / "second")["components"]["ema"]["eval_weights"]
    torch.testing.assert_close(
        average, {name: weights[name] for name in average}, rtol=0, atol=1e-7
    )


def test_update_until_the_step_is_that_of_frozen_parameters(
    tiny: MakePackage, tmp_path: Path
) -> None:
    p = tiny("finetune")
    p.train_here(tmp_path / "frozen", *SIX, *TINY, *FROZEN, "--optim.max_grad_norm=0.1")
    p.train_here(
        tmp_path / "later",
        *SIX,
        *TINY,
        *FROZEN,
        "--optim.max_grad_norm=0.1",
        "--finetune.unfreeze_at=9",
    )
    assert equal(saved(tmp_path / "later")["model"], saved(tmp_path / "frozen")["model"])
    assert rows(tmp_path / "later") == rows(tmp_path / "frozen")
    torch.manual_seed(0)
    start = p.model.build(p.model.ModelConfig(kind="batch_norm"), p.data.Spec()).state_dict()
    found = saved(tmp_path / "frozen")["model"]
    same = {name for name in start if torch.equal(start[name], found[name])}
    assert same == {name for name in start if name.startswith(("layers.0.", "layers.1."))}, (
        "statistics too"
    )
    p.train_here(tmp_path / "whole", *SIX, *TINY)
    assert not equal(
        saved(tmp_path / "whole")["model"]["layers.1.running_mean"], found["layers.1.running_mean"]
    )


def test_unfreezing_run_resumes_to_the_same_end(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("finetune")
    support = importlib.import_module(f"{p.name}.tests.support")
    options = [*SIX, *TINY, *FROZEN, "--finetune.unfreeze_at=3", "--finetune.enabled=true"]
    p.train_here(tmp_path / "whole", *options)
    for step in (1, 4):
        folder = tmp_path / str(step)
        with support.at_step(step, support.ask_to_stop), pytest.raises(p.errors.Stopped):
            p.train_here(folder, *options)
        p.train_here(folder, *options)
        assert equal(saved(folder), saved(tmp_path / "whole"))
        assert rows(folder) == rows(tmp_path / "whole")
    moved = saved(tmp_path / "whole")["model"]
    assert moved["layers.1.num_batches_tracked"] == 3


def test_two_ranks_unfreeze_as_one_process(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("finetune")
    options = [*SIX, "--train.global_batch_size=16", "--optim.eps=1e-4", "--model.dropout=0"]
    options = [*options, '--finetune.freeze=["layers.0"]', "--finetune.unfreeze_at=3"]
    p.train_here(tmp_path / "one", *options, "--train.batch_size=8")
    p.finish(tmp_path / "two", *options, "--train.batch_size=4", ranks=2)
    torch.testing.assert_close(
        saved(tmp_path / "two")["model"], saved(tmp_path / "one")["model"], rtol=1e-4, atol=1e-6
    )


def test_sharded_model_starts_with_the_weights(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("finetune", "fsdp")
    p.train_here(tmp_path / "first", *SIX)
    options = [
        f"--finetune.weights={tmp_path / 'first/a'}",
        "--fsdp.enabled=true",
        "--optim.lr=1e-12",
    ]
    done = p.finish(
        tmp_path / "sharded", *ON, *options, "--train.steps=1", "--train.batch_size=8", ranks=2
    )
    assert done.stdout.count("finetune: loaded 3 of 3 tensors") == 1
    found = p.checkpoint.load_weights(tmp_path / "sharded/a")
    torch.testing.assert_close(
        found, p.checkpoint.load_weights(tmp_path / "first/a"), rtol=0, atol=1e-7
    )


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
def test_rates_are_those_of_the_depths_and_resume(
    package: MakePackage, tmp_path: Path, optimizer: str
) -> None:
    p = package("mlp", "finetune", "optimizers")
    support = importlib.import_module(f"{p.name}.tests.support")
    other = (
        []
        if optimizer == "adamw"
        else ["--optimizers.enabled=true", f"--optimizers.name={optimizer}"]
    )
    options = [*SIX, *other, "--finetune.lr_decay=0.5"]
    groups = list[dict[str, Any]]()
    with support.at_step(3, lambda it: groups.extend(it.param_groups)):
        p.train_here(tmp_path / "whole", *options)
    torch.manual_seed(0)
    net = p.model.build(p.model.ModelConfig(), p.data.load(p.data.DataConfig())[2])
    expected = {"stem": 0.125, "blocks.0": 0.25, "blocks.1": 0.5, "norm": 1.0, "head": 1.0}
    counts = dict.fromkeys(expected.values(), 0)
    for name, parameter in net.named_parameters():
        counts[next(scale for part, scale in expected.items() if name.startswith(f"{part}."))] += (
            parameter.numel()
        )
    found = dict.fromkeys(expected.values(), 0)
    for group in groups:
        found[group["lr_scale"]] += sum(parameter.numel() for parameter in group["params"])
    assert found == counts
    assert len({round(group["lr"] / group["lr_scale"], 12) for group in groups}) == 1
    with support.at_step(1, support.ask_to_stop), pytest.raises(p.errors.Stopped):
        p.train_here(tmp_path / "stopped", *options)
    p.train_here(tmp_path / "stopped", *options)
    assert equal(saved(tmp_path / "stopped"), saved(tmp_path / "whole"))


def test_model_without_blocks_is_one_line(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("finetune")
    with pytest.raises(p.errors.UserError, match="finetune.lr_decay needs a model with `blocks`"):
        p.train_here(tmp_path, *ON, "--finetune.lr_decay=0.5")
    matched = p.components.finetune.matched
    names = ["stem.weight", "blocks.0.a", "blocks.1.a", "head.weight", "head.bias"]
    assert matched(["*", "!head"], names) == {"stem.weight", "blocks.0.a", "blocks.1.a"}
    assert (
        matched(["blocks.*"], names) == matched(["blocks"], names) == {"blocks.0.a", "blocks.1.a"}
    )
    assert matched(["blocks.0", "head.bias"], names) == {"blocks.0.a", "head.bias"}
