"""Print the speed and the memory of a loader of JPEG files in 224 pixels.

    python load_images.py LOADER FOLDER WORKERS

core           the rendered project's
pillow         torch's DataLoader of images that Pillow decodes and resizes
spdl           SPDL's pipeline of threads, whose FFmpeg decodes and resizes
torchvision    ImageFolder, Resize and PILToTensor with torch's DataLoader
timm           create_dataset and create_loader, without augmentation

Each gives whole epochs of uint8 batches of 64 in random order; the first epoch, in which workers
start, does not count. CPU time and memory are those of this process and its workers; pages that
they share count once.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
import torch
from peer_setup import module
from PIL import Image
from torch.utils.data import DataLoader, Dataset

BATCH = 64
EPOCHS = 3


def open_project(folder: Path) -> tuple[Any, Iterable[list[int]], Any]:
    """Return the project's training set, the indices of all batches, and a world of one rank."""
    config = module("config")
    data = module("data")
    loader = module("loader")
    train_set, _, _ = data.load(data.DataConfig(path=folder, size=224))
    train_cfg = config.TrainConfig(epochs=EPOCHS, batch_size=BATCH)
    plan = loader.BatchPlan.make(train_cfg, len(train_set), 1)
    world = module("distributed").World(0, 1, torch.device("cpu"))
    return train_set, loader.train_batches(plan, world, 0, 0), world


def core(folder: Path, workers: str) -> Iterable[Any]:
    """Return the project's loader."""
    train_set, order, world = open_project(folder)
    count = "auto" if workers == "auto" else int(workers)
    cfg = module("config").LoaderConfig(num_workers=count)
    batches: Iterable[Any] = module("loader").Loader(train_set, order, cfg, world)
    return batches


class PillowFolder(Dataset[Any]):
    """Images that Pillow decodes and resizes, as torchvision's transforms do."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        file = self.files[index]
        with Image.open(file) as opened:
            image = opened.convert("RGB")
        image = image.resize((224, 224), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.array(image))
        return pixels.permute(2, 0, 1).contiguous(), int(file.parent.name)


def repeat_epochs(dataset: Dataset[Any], workers: str) -> Iterable[Any]:
    """Return the batches of torch's DataLoader over all epochs."""
    loader = DataLoader(
        dataset,
        BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=int(workers),
        persistent_workers=workers != "0",
    )
    return chain.from_iterable(repeat(loader, EPOCHS))


def pillow(folder: Path, workers: str) -> Iterable[Any]:
    """Return what a program without a library of images would do."""
    return repeat_epochs(PillowFolder(folder), workers)


def spdl(folder: Path, workers: str) -> Iterator[Any]:
    """Yield what SPDL's documentation shows for images."""
    images = importlib.import_module("spdl.io")
    pipeline = importlib.import_module("spdl.pipeline")
    files = [str(file) for file in sorted(folder.rglob("*.jpg"))]

    def batches() -> Iterator[list[str]]:
        for _ in range(EPOCHS):
            order = torch.randperm(len(files)).tolist()
            for begin in range(0, len(files) - BATCH + 1, BATCH):
                yield [files[index] for index in order[begin : begin + BATCH]]

    def decode(batch: list[str]) -> Any:
        decoded = images.load_image_batch(batch, width=224, height=224)
        return images.to_torch(decoded)

    count = max(1, int(workers))
    builder = pipeline.PipelineBuilder().add_source(batches())
    builder = builder.pipe(decode, concurrency=count).add_sink(2 * count)
    built = builder.build(num_threads=count)
    with built.auto_stop():
        yield from built


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
    return repeat_epochs(datasets.ImageFolder(str(folder), transform), workers)


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


LOADERS: dict[str, Callable[[Path, str], Iterable[Any]]] = {
    "core": core,
    "pillow": pillow,
    "spdl": spdl,
    "torchvision": torchvision,
    "timm": timm,
}


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """Return the CPU time that processes have used."""
    seconds = 0.0
    for process in processes:
        times = process.cpu_times()
        seconds += times.user + times.system
    return seconds


def main() -> None:
    """Load the epochs, and print."""
    torch.set_num_threads(1)
    _, name, folder, workers = sys.argv
    images = Path(folder)
    begin = time.perf_counter()
    batches = iter(LOADERS[name](images, workers))
    next(batches)
    first = time.perf_counter() - begin
    count = len(list(images.rglob("*.jpg")))
    if name == "core":
        count = len(open_project(images)[0])  # the others are for validation
    epoch = count // BATCH
    for _ in range(epoch - 1):
        next(batches)
    measured = epoch * (EPOCHS - 1)
    this = psutil.Process()
    processes = [this, *this.children(recursive=True)]
    cpu = cpu_seconds(processes)
    begin = time.perf_counter()
    for _ in range(measured):
        next(batches)
    seconds = time.perf_counter() - begin
    cpu = cpu_seconds(processes) - cpu
    memory = sum(process.memory_full_info().pss for process in processes)
    result = {
        "images/s": measured * BATCH / seconds,
        "images per CPU second": measured * BATCH / cpu,
        "seconds to the first batch": first,
        "memory in MB": memory / 1e6,
    }
    print(json.dumps(result), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
