"""Print the images per second of a loader of JPEG files in 224 pixels: `load_images.py LOADER FOLDER WORKERS`.

core           the rendered project's
torchvision    ImageFolder, Resize and PILToTensor with torch's DataLoader
timm           create_dataset and create_loader, without augmentation

Each gives whole epochs of uint8 batches of 64 in random order; the first epoch, in which workers
start, does not count.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

BATCH, EPOCHS = 64, 3


def core(folder: Path, workers: str) -> Iterable[Any]:
    """Return the project's loader over all epochs, and the batches in one."""
    config, data, distributed, loader = (
        importlib.import_module(f"proj.{name}")
        for name in ("config", "data", "distributed", "loader")
    )

    train_set, _, _ = data.load(data.DataConfig(path=folder, size=224))
    plan = loader.BatchPlan.make(
        config.TrainConfig(epochs=EPOCHS, micro_batch=BATCH), len(train_set), 1
    )
    world = distributed.World(0, 1, torch.device("cpu"))
    order = loader.train_batches(plan, world, 0, 0)
    cfg = config.LoaderConfig(workers="auto" if workers == "auto" else int(workers))
    found: Iterable[Any] = loader.Loader(train_set, order, cfg, world)
    return found


@contextmanager
def without_operators() -> Iterator[None]:
    """Let torchvision's build for CUDA be imported beside torch's for CPUs; its operators are not used."""
    with (
        mock.patch.object(torch.library, "register_fake"),
        mock.patch.object(torch.library.Library, "impl"),
    ):
        yield


def torchvision(folder: Path, workers: str) -> Iterable[Any]:
    """Return what torchvision's documentation shows."""
    with without_operators():
        datasets, transforms = (
            importlib.import_module(f"torchvision.{name}") for name in ("datasets", "transforms")
        )

    change = transforms.Compose([transforms.Resize((224, 224)), transforms.PILToTensor()])
    images, number = datasets.ImageFolder(str(folder), change), int(workers)
    loader = torch.utils.data.DataLoader(
        images,
        BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=number,
        persistent_workers=number > 0,
    )
    return (batch for _ in range(EPOCHS) for batch in loader)


def timm(folder: Path, workers: str) -> Iterable[Any]:
    """Return timm's loader, which also crops."""
    with without_operators():
        data = importlib.import_module("timm.data")

    options = {
        "is_training": True,
        "no_aug": True,
        "use_prefetcher": False,
        "num_workers": int(workers),
    }
    loader = data.create_loader(
        data.create_dataset("", str(folder)), (3, 224, 224), BATCH, **options
    )
    return (batch for _ in range(EPOCHS) for batch in loader)


if __name__ == "__main__":
    torch.set_num_threads(1)
    kind, images, number = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    batches = iter({"core": core, "torchvision": torchvision, "timm": timm}[kind](images, number))
    count = sum(1 for _ in images.rglob("*.jpg"))
    epoch = (count * 4 // 5 if kind == "core" else count) // BATCH
    for _ in range(epoch):
        next(batches)
    begin = time.perf_counter()
    for _ in range(epoch * (EPOCHS - 1)):
        next(batches)
    print(json.dumps(epoch * (EPOCHS - 1) * BATCH / (time.perf_counter() - begin)), flush=True)
    os._exit(0)
