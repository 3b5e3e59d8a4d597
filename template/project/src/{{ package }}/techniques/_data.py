"""Options of the data: how samples become batches, who reads them, and where they stay."""

import os

from .. import data, loaders
from ..config import LoaderConfig
from ..contracts import Data, in_memory, tensors
from ..data import DataConfig
from ..distributed import World
from ..loaders import Batches, Loader


def load(cfg: DataConfig) -> Data:
    """Load the data, with samples collated into batches where a dataset does not return whole ones.

    Raises:
        UserError: they cannot be loaded or collated, or a stream cannot be read exactly once.
    """
    loaded: Data = data.load(cfg)
    for split in (loaded.train, loaded.val):
        whole = hasattr(split, "__getitems__") and hasattr(split, "__len__")
        first = split.__getitems__([0]) if whole and len(split) else None
        if not whole or (len(split) and not (isinstance(first, tuple) and tensors(first))):
            from . import datasets

            return datasets.adapted(loaded)
    return loaded


def worker_count(cfg: LoaderConfig, data: Data, world: World, own_cores: bool = False) -> int:
    """Return the loader processes per rank; at most one reads a stream, which `load` has made of what is iterated over.

    `own_cores` is `run.cpu_affinity`: the cores of this process are those of this rank.

    Raises:
        UserError: there are too few cores, or a stream cannot be read so.
    """
    own_cores = own_cores and hasattr(os, "sched_setaffinity")
    workers = loaders.worker_count(cfg, in_memory(data), world.device, own_cores)
    splits = [split for split in (data.train, data.val) if getattr(split, "sequential", False)]
    if not splits:
        return workers
    from . import stream

    return stream.check_readers(splits, cfg, workers, world)


def cache_on_device(loader: Loader, cfg: DataConfig) -> Batches:
    """`data.cache=device`: keep all samples of a loader on the device.

    Raises:
        UserError: they do not fit into its memory.
    """
    if getattr(cfg, "cache", "none") != "device":
        return loader
    from .device_cache import DeviceCache

    return DeviceCache(loader)
