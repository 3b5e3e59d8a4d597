"""Print the images per second of a loader of JPEG files in 224 pixels.

    python load_images.py LOADER FOLDER WORKERS

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
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from peer_setup import module

BATCH = 64
EPOCHS = 3


def core(folder: Path, workers: str) -> Iterable[Any]:
    """Return the project's loader over all epochs, and the batches in one."""
    config = module("config")
    data = module("data")
    loader = module("loader")
    train_set, _, _ = data.load(data.DataConfig(path=folder, size=224))
    train_cfg = config.TrainConfig(epochs=EPOCHS, batch_size=BATCH)
    plan = loader.BatchPlan.make(train_cfg, len(train_set), 1)
    world = module("distributed").World(0, 1, torch.device("cpu"))
    order = loader.train_batches(plan, world, 0, 0)
    cfg = config.LoaderConfig(num_workers="auto" if workers == "auto" else int(workers))
    batches: Iterable[Any] = loader.Loader(train_set, order, cfg, world)
    return batches


@contextmanager
def without_operators() -> Iterator[None]:
    """Let torchvision's build for CUDA be imported beside torch's for CPUs."""
    with (
        mock.patch.object(torch.library, "register_fake"),
        mock.patch.object(torch.library.Library, "impl"),
    ):
        yield


def torchvision(folder: Path, workers: str) -> Iterable[Any]:
    """Return what torchvision's documentation shows."""
    with without_operators():
        datasets = importlib.import_module("torchvision.datasets")
        transforms = importlib.import_module("torchvision.transforms")

    resize = transforms.Resize((224, 224))
    transform = transforms.Compose([resize, transforms.PILToTensor()])
    loader = torch.utils.data.DataLoader(
        datasets.ImageFolder(str(folder), transform),
        BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=int(workers),
        persistent_workers=workers != "0",
    )
    return chain.from_iterable(repeat(loader, EPOCHS))


def timm(folder: Path, workers: str) -> Iterable[Any]:
    """Return timm's loader, which also crops."""
    with without_operators():
        data = importlib.import_module("timm.data")

    loader = data.create_loader(
        data.create_dataset("", str(folder)),
        (3, 224, 224),
        BATCH,
        is_training=True,
        no_aug=True,
        use_prefetcher=False,
        num_workers=int(workers),
    )
    return chain.from_iterable(repeat(loader, EPOCHS))


def main() -> None:
    """Load the epochs, and print."""
    torch.set_num_threads(1)
    _, name, folder, workers = sys.argv
    images = Path(folder)
    loaders = {"core": core, "torchvision": torchvision, "timm": timm}
    batches = iter(loaders[name](images, workers))
    count = len(list(images.rglob("*.jpg")))
    if name == "core":
        count = count * 4 // 5  # the others are for validation
    epoch = count // BATCH
    for _ in range(epoch):
        next(batches)
    measured = epoch * (EPOCHS - 1)
    begin = time.perf_counter()
    for _ in range(measured):
        next(batches)
    seconds = time.perf_counter() - begin
    print(json.dumps(measured * BATCH / seconds), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
