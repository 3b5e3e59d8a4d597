"""A trained model as a file that needs no code of this project, compared with the model.

python -m <package>.components.export runs/first                # model.pt2, of torch.export
python -m <package>.components.export runs/first --format onnx  # model.onnx

The file has the model's `predict`, in fp32, for batches of any size of inputs as `Prepare` in
data.py returns them.
"""

import argparse
import logging
import warnings
from collections.abc import Callable
from importlib import import_module
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from .. import data
from ..contracts import load_batch
from ..errors import UserError, one_line
from ..evaluate import load_run

Predict = Callable[[list[Tensor]], Tensor]


@torch.no_grad()
def export(
    run: Path,
    kind: str,
    file: Path,
) -> float:
    """Write the model of a run; return how much it differs at most on validation samples.

    Raises:
        UserError: it cannot be exported, or differs by more than rounding.
    """
    cfg, net, val_set, spec = load_run(run, torch.device("cpu"))
    model: Any = net.eval()
    prepare = data.Prepare(spec, cfg.data)
    loaded = load_batch(val_set, [0, 1, 2])
    inputs = _inputs(model, prepare(loaded, False, torch.default_generator))
    model.forward = model.predict
    file.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings(action="ignore"), TemporaryDirectory(dir=file.parent) as folder:
        program = _trace(model, _first(inputs, 2))
        write = _write_onnx if kind == "onnx" else _write_program
        predict = write(program, Path(folder, file.name))
        largest = 0.0
        for count in (1, 3):
            samples = _first(inputs, count)
            expected = model(*samples)
            exported = predict(samples)
            difference = (exported - expected).abs().max()
            largest = max(largest, difference.item())
            # ONNX Runtime adds in another order
            if not torch.allclose(exported, expected, rtol=1e-3, atol=1e-4):
                differs = f"the exported model differs by up to {largest:.2g}"
                raise UserError(f"{differs}, so it is not kept")
        for part in Path(folder).iterdir():  # ONNX has weights above 2 GB in files of their own
            part.replace(file.parent / part.name)
    return largest


def _inputs(model: Any, batch: Any) -> list[Tensor]:
    """Return what `predict` takes of a batch."""
    named = batch
    if not isinstance(batch, dict):
        names = signature(model.forward).parameters
        named = dict(zip(names, batch, strict=False))
    inputs = []
    for name in signature(model.predict).parameters:
        if name not in named:
            taken = f"`predict` of {type(model).__name__} takes {name}"
            missing = "export has no example of it, nor of a loop that samples"
            raise UserError(f"{taken}, which is no input of `forward`: {missing}")
        inputs.append(named[name])
    return inputs


def _first(
    inputs: list[Tensor],
    count: int,
) -> list[Tensor]:
    return [value[:count].contiguous() for value in inputs]


def _trace(
    model: nn.Module,
    inputs: list[Tensor],
) -> ExportedProgram:
    """Trace `predict` for any number of samples."""
    shapes = tuple({0: torch.export.Dim("batch")} for _ in inputs)
    try:
        return torch.export.export(model, tuple(inputs), dynamic_shapes=shapes)
    except Exception as error:  # which one depends on the model's code
        failed = f"torch.export cannot trace `predict` of {type(model).__name__}"
        raise UserError(f"{failed}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _write_program(program: ExportedProgram, file: Path) -> Predict:
    """Write a program of torch.export, and return it as loaded from the file."""
    torch.export.save(program, file)
    module = torch.export.load(file).module()
    return lambda inputs: module(*inputs)


def _write_onnx(program: ExportedProgram, file: Path) -> Predict:
    """Write an ONNX file, and return it as loaded by ONNX Runtime."""
    onnxruntime = import_module("onnxruntime")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        onnx = torch.onnx.export(program, verbose=False)
    except torch.onnx.errors.OnnxExporterError as error:
        missing = "ONNX has no operator for a part of `predict`"
        raise UserError(f"{missing}: {_first_line(error)}") from error
    assert onnx is not None
    onnx.save(file)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])

    def predict(
        inputs: list[Tensor],
    ) -> Tensor:
        names = [declared.name for declared in session.get_inputs()]
        arrays = [value.numpy() for value in inputs]
        outputs = session.run(None, dict(zip(names, arrays, strict=True)))
        return torch.from_numpy(outputs[0])

    return predict


def main(
    argv: list[str] | None = None,
) -> None:
    """Export as the command line says."""
    parser = argparse.ArgumentParser(description="Export a run's best weights.")
    parser.add_argument("run", type=Path, help="folder of the run, such as runs/first")
    parser.add_argument("--format", choices=["torch-export", "onnx"], default="torch-export")
    parser.add_argument("--output", type=Path, help="default: model.pt2 or .onnx in the folder")
    args = parser.parse_args(argv)
    name = "model.onnx" if args.format == "onnx" else "model.pt2"
    file = args.output or args.run / name
    with one_line():
        difference = export(args.run, args.format, file)
        print(f"{file}: the largest difference from the model is {difference:.2g}")


if __name__ == "__main__":
    main()
