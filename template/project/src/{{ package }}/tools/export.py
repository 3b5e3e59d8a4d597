"""Export a trained model with torch.export or to ONNX, and compare its outputs with the original's.

    python -m <package>.tools.export runs/first
    python -m <package>.tools.export runs/first --format onnx --output model.onnx

The exported model runs without this repository. It takes inputs as loaded, in batches of any size, and prepares them;
if tools/task.py does not say how (`export_module`), it takes prepared inputs, as the model's `predict` does.
"""

import logging
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .. import distributed, techniques
from ..contracts import inputs_of
from ..errors import UserError
from ..failure import leave
from .optional import fitting, has, take
from .trained_model import TrainedModel, open_trained, parser, require_predict

RTOL, ATOL = 1e-3, 1e-4
"""Tolerances for the outputs of an exported model, in fp32."""


def to_torch(module: nn.Module, inputs: tuple[Tensor, ...], target: Path) -> Callable[..., Any]:
    """Write an ExportedProgram, and return it as loaded from the file: https://docs.pytorch.org/docs/stable/export.html."""
    torch.export.save(_program(module, inputs), target)
    loaded: Callable[..., Any] = torch.export.load(target).module()
    return loaded


def to_onnx(module: nn.Module, inputs: tuple[Tensor, ...], target: Path) -> Callable[..., Any]:
    """Write an ONNX file, and return it as loaded by ONNX Runtime.

    Raises:
        UserError: a required package is not installed.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  # torch.onnx imports it halfway through
    except ImportError as error:
        raise UserError(f"--format onnx needs a package ({error}): pip install -e '.[export]'") from error
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about its own calls
        found = torch.onnx.export(_program(module, inputs), dynamo=True, verbose=False)
    assert found is not None
    found.save(target)
    session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]

    def run(*values: Tensor) -> list[Tensor]:
        feed = {name: value.numpy() for name, value in zip(names, values, strict=True)}
        return [torch.from_numpy(value) for value in session.run(None, feed)]

    return run


def _program(module: nn.Module, inputs: tuple[Tensor, ...]) -> torch.export.ExportedProgram:
    """Trace the module with a dynamic batch dimension.

    Raises:
        UserError: torch.export fails.
    """
    batch = torch.export.Dim("batch")
    each = tuple({0: batch} for _ in inputs)
    shapes = (each,) if isinstance(module, _Predict) else each  # `*inputs` are one argument
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return torch.export.export(module, inputs, dynamic_shapes=shapes, strict=False)
        except Exception as error:  # the exception depends on the model's code
            reason = str(error).strip().splitlines()[0]
            raise UserError(f"torch.export cannot trace the model ({reason}): change its `predict`") from error


def max_difference(original: Callable[..., Any], exported: Callable[..., Any], inputs: tuple[Tensor, ...]) -> float:
    """The maximum absolute difference between the outputs of two models.

    Raises:
        UserError: it exceeds rounding errors.
    """
    with torch.no_grad():
        pairs = list(zip(_tensors(original(*inputs)), _tensors(exported(*inputs)), strict=True))
    if not pairs:
        raise UserError("`predict` returns no tensors, so nothing can be exported: change it in model.py")
    largest = max((one - other).abs().max().item() for one, other in pairs)
    if not all(torch.allclose(one, other, RTOL, ATOL) for one, other in pairs):
        raise UserError(f"the exported model differs from the original by up to {largest:.3g}: do not use it")
    return largest


def _tensors(outputs: Any) -> list[Tensor]:
    """The tensors of a nested structure, as doubles: those of bools cannot be subtracted."""
    return [found.double() for found in tree_leaves(outputs) if isinstance(found, Tensor)]


class _Predict(nn.Module):
    """The model's `predict` as `forward`; `names` are those of its inputs where a batch is a dict."""

    def __init__(self, net: Any, names: list[str]) -> None:
        super().__init__()
        self.net, self.names = net, names

    def forward(self, *inputs: Tensor) -> Any:
        named = dict(zip(self.names, inputs, strict=True)) if self.names else {}
        return self.net.predict(**named) if named else self.net.predict(*inputs)


@torch.no_grad()
def _predict_only(trained: TrainedModel) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The model's `predict`, and two validation samples as prepared: those parts of a batch that it takes.

    Raises:
        UserError: it does not take them, or they are not tensors.
    """
    samples = techniques.load(trained.cfg.data).val
    chosen = samples.__getitems__([index % len(samples) for index in range(2)])
    batch = trained.prepare(chosen, False, torch.Generator().manual_seed(0))
    found = inputs_of(trained.net.predict, batch)
    names = list(found) if isinstance(found, Mapping) else []
    inputs = tuple(found.values()) if names else (found,) if isinstance(found, Tensor) else tuple(found)
    module = _Predict(trained.net, names)
    try:
        module(*inputs)
    except Exception as error:  # the exception depends on the model's code
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"`predict` does not take what it names of a prepared batch ({reason}): let the inputs come first in the "
            "batch, or write `export_module` in tools/task.py, see contracts.py"
        ) from error
    if not all(isinstance(part, Tensor) for part in inputs):
        raise UserError(
            "`predict` takes other inputs than tensors: write `export_module` in tools/task.py, see contracts.py"
        )
    return module, inputs


WRITERS = {"torch": (to_torch, ".pt2"), "onnx": (to_onnx, ".onnx")}


def export(trained: TrainedModel, kind: str, target: Path) -> float:
    """Write the model to a file, and return the maximum difference between its outputs and the original's.

    Raises:
        UserError: it differs by more than rounding errors, or cannot be written; then there is no file.
    """
    write, suffix = WRITERS[kind]
    try:
        export_module = take("task", "export_module")
        with fitting("task", "export_module"), torch.no_grad():
            module, inputs = export_module(trained)
            module.eval()(*inputs)
            # Other files that the exported model needs, such as a tokenizer.
            files = take("task", "export_files")(trained) if has("task", "export_files") else {}
    except UserError as error:
        print(f"the exported model takes prepared inputs: {error}")
        (module, inputs), files = _predict_only(trained), {}
    # Batch sizes other than the one it is traced with.
    others = [tuple(part[:1] for part in inputs), tuple(torch.cat([part, part[:1]]) for part in inputs)]
    try:
        with TemporaryDirectory(dir=target.parent) as partial:
            file = Path(partial) / f"{target.stem}{suffix}"
            exported = write(module.eval(), inputs, file)
            difference = max(max_difference(module, exported, other) for other in others)
            file.replace(target)
            for name, text in files.items():
                Path(partial, name).write_text(text, encoding="utf-8")
            for more in Path(partial).iterdir():  # ONNX stores weights above 2 GB in separate files
                more.replace(target.parent / more.name)
    except OSError as error:
        raise UserError(f"cannot write {target} ({error.strerror}): give another --output") from error
    return difference


def main(argv: list[str] | None = None) -> None:
    """Read the command line, export, compare, and print the file name."""
    options = parser("export", "Export a trained model.")
    options.add_argument("--format", default="torch", choices=list(WRITERS), help="file format")
    options.add_argument(
        "--output", type=Path, help="output file (default: model.pt2 or model.onnx in the checkpoint folder)"
    )
    args = options.parse_args(argv)
    try:
        with distributed.start("cpu") as world:  # the exported model runs on any device
            trained = require_predict(open_trained(args.path, world.device, "fp32"))
            target = args.output or trained.checkpoint / f"model{WRITERS[args.format][1]}"
            difference = export(trained, args.format, target)
            print(f"{target}: maximum difference from the original outputs {difference:.2g}")
    except UserError as error:
        leave(error)


if __name__ == "__main__":
    main()
