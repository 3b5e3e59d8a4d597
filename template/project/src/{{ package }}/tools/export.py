"""Export a trained model for use without this repository: torch.export and ONNX, each held against the model itself.

    python -m <package>.tools.export runs/first
    python -m <package>.tools.export runs/first --format onnx --output model.onnx

The result takes inputs as they are loaded, in batches of any size, and prepares them itself.
"""

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from .. import distributed
from ..errors import UserError, in_one_line
from . import task
from .trained_model import Trained, for_use, open_trained, parser

RELATIVE, ABSOLUTE = 1e-3, 1e-4
"""How far an exported model's outputs may be from the model's own, in fp32."""


def to_torch(module: nn.Module, inputs: tuple[Tensor, ...], target: Path) -> Callable[..., Any]:
    """Write an ExportedProgram, and return it as read back: https://docs.pytorch.org/docs/stable/export.html."""
    torch.export.save(_program(module, inputs), target)
    loaded: Callable[..., Any] = torch.export.load(target).module()
    return loaded


def to_onnx(module: nn.Module, inputs: tuple[Tensor, ...], target: Path) -> Callable[..., Any]:
    """Write an ONNX file, and return what ONNX Runtime makes of it.

    Raises:
        UserError: the packages for it are not installed.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  # torch asks for it in the middle of its work
    except ImportError as error:
        raise UserError(f"--format onnx needs a package ({error}): pip install -e '.[export]'") from error
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what torch calls in torch
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
    """Trace the module for batches of any size.

    Raises:
        UserError: torch.export cannot follow it.
    """
    batch = torch.export.Dim("batch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return torch.export.export(module, inputs, dynamic_shapes=tuple({0: batch} for _ in inputs), strict=False)
        except Exception as error:  # whatever Python code in the model made it give up
            reason = str(error).strip().splitlines()[0]
            raise UserError(f"torch.export cannot trace this model ({reason}): change its predict") from error


def difference(ours: Callable[..., Any], theirs: Callable[..., Any], inputs: tuple[Tensor, ...]) -> float:
    """The largest difference of two models' outputs.

    Raises:
        UserError: it is larger than rounding.
    """
    with torch.no_grad():
        pairs = list(zip(_tensors(ours(*inputs)), _tensors(theirs(*inputs)), strict=True))
    largest = max((one - other).abs().max().item() for one, other in pairs)
    if not all(torch.allclose(one, other, RELATIVE, ABSOLUTE) for one, other in pairs):
        raise UserError(f"the exported model differs from the model by up to {largest:.3g}: do not use it")
    return largest


def _tensors(outputs: Any) -> list[Tensor]:
    return [outputs] if isinstance(outputs, Tensor) else list(outputs)


WRITERS = {"torch": (to_torch, ".pt2"), "onnx": (to_onnx, ".onnx")}


def export(trained: Trained, kind: str, target: Path) -> float:
    """Write the model to a file, and return by how much what is in it differs from the model.

    Raises:
        UserError: it differs by more than rounding, or cannot be written; then there is no file.
    """
    write, suffix = WRITERS[kind]
    module, inputs = task.exported(trained)
    # Other numbers of samples than it is traced with.
    others = [tuple(part[:1] for part in inputs), tuple(torch.cat([part, part[:1]]) for part in inputs)]
    try:
        with TemporaryDirectory(dir=target.parent) as partial:
            file = Path(partial) / f"{target.stem}{suffix}"
            again = write(module.eval(), inputs, file)
            found = max(difference(module, again, other) for other in others)
            file.replace(target)
            for more in Path(partial).iterdir():  # what ONNX puts beside a model of more than 2 GB
                more.replace(target.parent / more.name)
    except OSError as error:
        raise UserError(f"cannot write {target} ({error.strerror}): give another --output") from error
    return found


def main(argv: list[str] | None = None) -> None:
    """Read the command line, export, compare, and say where the file is."""
    options = parser("export", "Export a trained model.")
    options.add_argument("--format", default="torch", choices=list(WRITERS))
    options.add_argument("--output", type=Path, help="the file; without it, model.pt2 or model.onnx in the checkpoint")
    args = options.parse_args(argv)
    try:
        with distributed.start("cpu") as world:  # what is exported runs on any device
            trained = for_use(open_trained(args.path, world.device, "fp32"))
            target = args.output or trained.checkpoint / f"model{WRITERS[args.format][1]}"
            found = export(trained, args.format, target)
            print(f"{target}: its outputs differ from the model's by {found:.2g} at most")
    except UserError as error:
        distributed.leave(in_one_line(error))


if __name__ == "__main__":
    main()
