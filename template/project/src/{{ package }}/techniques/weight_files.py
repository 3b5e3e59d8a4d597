"""Files of weights, of this project and of others: what `train.init_from` reads. Nothing in them is executed."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import checkpoint
from ..config import LoraConfig
from ..errors import UserError
from .lora import merge

Weights = dict[str, Callable[[], Tensor]]
"""What reads each tensor, by name."""
Files = dict[Path, dict[str, str | int] | None]
"""The files, with size and SHA-256 where these are known."""

NAMES = ("model.safetensors", "diffusion_pytorch_model.safetensors", "pytorch_model.bin")
"""In a folder of Hugging Face; or with `.index.json`, which names the files that it is divided into."""
INSIDE = ("state_dict", "model_state_dict", "model", "weights", "params")
"""Under which of these keys training programs save the weights beside other things."""


def read(given: str) -> tuple[Weights, Files]:
    """Return what reads the tensors in a file, a run or checkpoint of this project, or a folder of Hugging Face.

    Raises:
        UserError: there is nothing to read, or it is damaged.
    """
    path = Path(given).expanduser()
    try:
        files = _files(path)
        if not files:
            return _of_run(path)
        weights: Weights = {}
        for file in files:
            file.stat()  # names what is not there
            weights |= _safetensors(file) if file.suffix == ".safetensors" else _pickled(file)
    except OSError as error:
        raise UserError(
            f"train.init_from is {given}: cannot read {error.filename or path} ({error.strerror})"
        ) from error
    except ImportError as error:
        raise UserError(
            f"train.init_from is {given}, which needs a package ({error}): pip install -e '.[finetune]'"
        ) from error
    except UserError:
        raise
    except Exception as error:  # torch raises any kind for a damaged file
        why = f"{type(error).__name__}: {' '.join(f'{error}'.split()).partition('. ')[0][:120]}".removesuffix(": ")
        what = f"it is damaged, or has more than tensors in it ({why})"
        raise UserError(f"train.init_from is {given}: {what}; give a file of its `state_dict` alone") from error
    if not weights:
        raise UserError(f"train.init_from is {given}: there are no tensors in it by name, as in a `state_dict`")
    return weights, dict.fromkeys(files)


def _files(path: Path) -> list[Path]:
    """Return the files of weights; none for a run or a checkpoint of this project."""
    if path.is_file() and path.name != checkpoint.BEST:
        return [path]
    for name in NAMES:
        index = path / f"{name}.index.json"
        if (path / name).is_file():
            return [path / name]
        if index.is_file():
            parts = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
            return [path / part for part in sorted(set(parts))]
    return []


def _of_run(path: Path) -> tuple[Weights, Files]:
    """Read the newest good checkpoint at a path: averaged weights, if it has some, and LoRA merged."""
    if not path.exists():
        raise UserError(f"train.init_from is {path}: there is no such file or folder, and nothing is downloaded")
    folder = checkpoint.find(path)
    if folder is None:
        names = ", ".join(NAMES)
        raise UserError(f"train.init_from is {path}, which has no good checkpoint, and none of {names}")
    manifest, state = checkpoint.read_manifest(folder), checkpoint.read_state(folder, mmap=True)
    weights = {**state["model"], **state.get("ema", {})}
    lora = LoraConfig(**manifest["config"].get("lora", {}))
    weights = merge(weights, lora) if lora.rank is not None else weights
    return _readers(weights), {folder / name: known for name, known in manifest["files"].items()}


def _pickled(file: Path) -> Weights:
    """Read what torch.save has written: a state_dict, or a dict that has one."""
    loaded: Any = torch.load(file, map_location="cpu", weights_only=True)
    averaged: Mapping[str, Any] = {}
    for _ in range(2):  # it may be a dict in a dict
        if not (found := _inside(loaded, *INSIDE)):
            break
        # Of this project, and in Lightning's file.
        averaged = averaged or _inside(loaded, "ema") or _inside(_inside(loaded, "run"), "ema")
        loaded = found
    return _readers({**loaded, **averaged} if averaged else loaded)


def _inside(loaded: Any, *keys: str) -> Mapping[str, Any]:
    """Return the first of the keys of a dict that has a dict."""
    known = loaded if isinstance(loaded, Mapping) else {}
    return next((known[key] for key in keys if isinstance(known.get(key), Mapping)), {})


def _readers(weights: Any) -> Weights:
    named = weights.items() if isinstance(weights, Mapping) else ()
    return {f"{name}": partial(_given, value) for name, value in named if isinstance(value, Tensor)}


def _given(value: Tensor) -> Tensor:
    return value


def _safetensors(file: Path) -> Weights:
    from safetensors import SafetensorError, safe_open

    try:
        opened: Any = safe_open(file, framework="pt")
        return {name: partial(opened.get_tensor, name) for name in opened.keys()}  # noqa: SIM118  # it is no dict
    except SafetensorError as error:
        raise ValueError(error) from error
