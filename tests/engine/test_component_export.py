"""Exported files of each model compute what the model computes.

What cannot be exported is one line.
"""

from importlib import import_module
from pathlib import Path

import pytest
import torch
from engine import MakePackage
from matrix import EVERY, MODELS

EXPORTED = [model for model in MODELS if model != "diffusion"]
KINDS = [("torch-export", model) for model in EXPORTED] + [("onnx", model) for model in EXPORTED]
CHEAP = [("torch-export", "vit"), ("onnx", "mlp")]


@pytest.mark.parametrize(("kind", "model"), KINDS if EVERY else CHEAP)
def test_exported_file_computes_what_the_model_computes(
    package: MakePackage, tmp_path: Path, kind: str, model: str
) -> None:
    p = package(model, "export")
    p.train_here(tmp_path, "--train.steps=2", "--train.batch_size=8")
    file = tmp_path / "new/exported.model"  # in a folder that does not exist yet
    difference = import_module(f"{p.name}.components.export").export(tmp_path / "a", kind, file)
    assert 0 <= difference < 1e-4
    cfg, net, val_set, spec = p.evaluate.load_run(tmp_path / "a", torch.device("cpu"))
    whole = val_set.__getitems__(list(range(7)))
    *inputs, _ = p.data.Prepare(spec, cfg.data)(
        whole,
        False,
        torch.Generator(),
    )
    with torch.no_grad():
        expected = net.eval().predict(*inputs)
        if kind == "torch-export":
            found = torch.export.load(file).module()(*inputs)
        else:
            session = import_module("onnxruntime").InferenceSession(
                file, providers=["CPUExecutionProvider"]
            )
            names = [entry.name for entry in session.get_inputs()]
            feed = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
            found = torch.from_numpy(session.run(None, feed)[0])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_model_of_a_sampling_loop_is_one_line(package: MakePackage, tmp_path: Path) -> None:
    p = package("diffusion", "export")
    p.train_here(tmp_path, "--train.steps=1", "--train.batch_size=8")
    with pytest.raises(
        p.errors.UserError, match="`predict` of UNet takes points, which is no input of `forward`"
    ):
        import_module(f"{p.name}.components.export").export(
            tmp_path / "a", "onnx", tmp_path / "model.onnx"
        )
    assert not (tmp_path / "model.onnx").exists()


def test_predict_that_cannot_be_traced_is_one_line(
    package: MakePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = package("mlp", "export")
    p.train_here(tmp_path, "--train.steps=1")

    def predict(
        self: torch.nn.Module,
        numbers: torch.Tensor,
        codes: torch.Tensor,
    ) -> torch.Tensor:
        return numbers if numbers.sum().item() > 0 else codes

    monkeypatch.setattr(p.model.MLP, "predict", predict)
    with pytest.raises(p.errors.UserError, match="torch.export cannot trace `predict` of MLP: "):
        import_module(f"{p.name}.components.export").export(
            tmp_path / "a", "torch-export", tmp_path / "model.pt2"
        )
