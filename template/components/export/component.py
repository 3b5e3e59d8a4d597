"""A trained model as a file that needs no code of this project, compared with the model.

python -m <package>.components.export runs/first                # model.pt2, a program of
torch.export
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
from torch import Tensor

from .. import data
from ..errors import UserError, one_line
from ..evaluate import load_run
from ..loader import load_batch

RTOL, ATOL = 1e-3, 1e-4
"""Largest relative and absolute difference: ONNX Runtime adds in another order."""


@torch.no_grad()
def export(run: Path, kind: str, file: Path) -> float:
    """Write the model of a run, and return the largest difference of its outputs on validation samples."""
    cfg, net, val_set, spec = load_run(run, torch.device("cpu"))
    model: Any = net.eval()
    batch = data.Prepare(spec, cfg.data)(
        load_batch(val_set, [0, 1, 2]), False, torch.default_generator
    )
    inputs = _inputs(model, batch)
    expected = [model.predict(**_first(inputs, count)) for count in (1, 3)]
    model.forward = model.predict
    with warnings.catch_warnings(action="ignore"):  # of torch about its own calls
        program = _trace(model, _first(inputs, 2))
        write = _write_onnx if kind == "onnx" else _write_program
        file.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=file.parent) as folder:
            call = write(program, Path(folder, file.name))
            found = [call(_first(inputs, count)) for count in (1, 3)]
            largest: float = max(
                (one - other).abs().max().item() for one, other in zip(found, expected, strict=True)
            )
            if not all(
                torch.allclose(*pair, RTOL, ATOL) for pair in zip(found, expected, strict=True)
            ):
                raise UserError(
                    f"the exported model differs by up to {largest:.2g}, so it is not kept"
                )
            for part in Path(
                folder
            ).iterdir():  # ONNX has the weights above 2 GB in files of their own
                part.replace(file.parent / part.name)
    return largest


def _inputs(model: Any, batch: Any) -> dict[str, Tensor]:
    """Return what `predict` takes of a batch."""
    named = (
        batch
        if isinstance(batch, dict)
        else dict(zip(signature(model.forward).parameters, batch, strict=False))
    )
    names = list(signature(model.predict).parameters)
    if missing := [name for name in names if name not in named]:
        why = f"`predict` of {type(model).__name__} takes {missing[0]}, which is no input of `forward`"
        raise UserError(f"{why}: export has no example of it, nor of a loop that samples")
    return {name: named[name] for name in names}


def _first(inputs: dict[str, Tensor], count: int) -> dict[str, Tensor]:
    return {name: value[:count].contiguous() for name, value in inputs.items()}


def _trace(model: Any, inputs: dict[str, Tensor]) -> torch.export.ExportedProgram:
    """Trace `predict` for any number of samples."""
    shapes = {name: {0: torch.export.Dim("batch")} for name in inputs}
    try:
        return torch.export.export(model, tuple(inputs.values()), dynamic_shapes=shapes)
    except Exception as error:  # which one depends on the model's code
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"torch.export cannot trace `predict` of {type(model).__name__}: {reason}"
        ) from error


def _write_program(
    program: torch.export.ExportedProgram, file: Path
) -> Callable[[dict[str, Tensor]], Tensor]:
    """Write a program of torch.export, and return it as loaded from the file."""
    torch.export.save(program, file)
    module = torch.export.load(file).module()
    return lambda inputs: module(*inputs.values())


def _write_onnx(
    program: torch.export.ExportedProgram, file: Path
) -> Callable[[dict[str, Tensor]], Tensor]:
    """Write an ONNX file, and return it as loaded by ONNX Runtime."""
    onnxruntime = import_module("onnxruntime")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        found = torch.onnx.export(program, verbose=False)
    except torch.onnx.errors.OnnxExporterError as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"ONNX has no operator for a part of `predict`: {reason}") from error
    assert found is not None
    found.save(file)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return lambda inputs: torch.from_numpy(
        session.run(None, {name: it.numpy() for name, it in inputs.items()})[0]
    )


def main(argv: list[str] | None = None) -> None:
    """Export as the command line says."""
    parser = argparse.ArgumentParser(
        description="Export a run's best weights, and compare the file with the model."
    )
    parser.add_argument("run", type=Path, help="folder of the run, such as runs/first")
    parser.add_argument("--format", choices=["torch-export", "onnx"], default="torch-export")
    parser.add_argument(
        "--output", type=Path, help="file to write; default: model.pt2 or .onnx in the run's folder"
    )
    options = parser.parse_args(argv)
    file = options.output or options.run / (
        "model.onnx" if options.format == "onnx" else "model.pt2"
    )
    with one_line():
        difference = export(options.run, options.format, file)
        print(f"{file}: the largest difference from the model is {difference:.2g}")


if __name__ == "__main__":
    main()
