"""The cache: kinds of datasets, several processes that write, what makes a new file, failures."""

import dataclasses
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine import MakePackage, Package, equal, rows, saved
from PIL import Image

KINDS = ["batches", "samples", "dicts", "nested", "tensors"]
SIX = ["--train.steps=6", "--train.eval_every=3"]


@pytest.fixture(scope="module")
def p(tiny: MakePackage) -> Package:
    found: Package = tiny("cache")
    return found


@pytest.mark.parametrize("where", ["disk", "memory", "device"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_dataset_trains_as_without(
    p: Package, tmp_path: Path, kind: str, where: str
) -> None:
    chosen = [*SIX, f"--data.kind={kind}"]
    p.train_here(tmp_path / "without", *chosen)
    for name in ("first", "second"):
        more = [
            "--cache.enabled=true",
            f"--cache.where={where}",
            f"--cache.folder={tmp_path}/cache",
        ]
        p.train_here(tmp_path / name, *chosen, *more)
        assert equal(saved(tmp_path / name)["model"], saved(tmp_path / "without")["model"])
        assert rows(tmp_path / name) == rows(tmp_path / "without")


@pytest.mark.parametrize(
    ("where", "pinned"),
    [
        ("disk", True),
        ("memory", True),
        ("device", False),
    ],
)
def test_batches_are_pinned_where_they_are_in_host_memory(
    p: Package, where: str, pinned: bool
) -> None:
    cache = p.components.cache
    gpu = p.distributed.World(0, 1, torch.device("cuda"))
    component = cache.Cache(cache.CacheConfig(enabled=True, where=where), gpu)
    wrapped = component.wrap_dataset(p.data.load(p.data.DataConfig())[0])
    assert p.loader.Loader(wrapped, [], p.config.LoaderConfig(), gpu).pin_memory == pinned


class Boxes:
    """Samples for a `collate_fn` that depends on the types of their parts."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "image": torch.full((2, 3), index),
            "pair": (index, [index / 3, torch.tensor(index)]),
            "odd": index > 4,
        }

    def collate_fn(self, samples: list[Any]) -> list[Any]:
        return samples


def opened(
    p: Package,
    dataset: Any,
    where: str,
    folder: Path,
) -> Any:
    """Return a dataset with its cache."""
    cache = p.__getattr__("components.cache")
    found = (cache.OnDisk if where == "disk" else cache.InMemory)(dataset)
    found.source.learn()
    if where == "disk":
        found.open(folder / "cache/a.bin")
    else:
        found.fill(
            [found.source.__getitems__([*range(begin, begin + 3)]) for begin in (0, 3, 6)],
            torch.device("cpu"),
        )
    return found


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_own_collate_gets_what_it_gets_without(p: Package, tmp_path: Path, where: str) -> None:
    cached = opened(p, Boxes(), where, tmp_path)
    plain = Boxes()
    for _ in range(2):
        for sample, index in zip(
            cached.collate_fn(cached.__getitems__([5, 0, 8, 5])), [5, 0, 8, 5], strict=True
        ):
            expected = plain[index]
            assert sample.keys() == expected.keys()
            assert torch.equal(sample["image"], expected["image"])
            assert type(sample["odd"]) is bool
            assert type(sample["pair"][0]) is int
            assert sample["pair"][1][0] == index / 3
            assert torch.equal(sample["pair"][1][1], torch.tensor(index))


def test_parts_of_any_type_and_size_are_kept(p: Package, tmp_path: Path) -> None:
    kinds = [
        torch.bool,
        torch.uint8,
        torch.int16,
        torch.bfloat16,
        torch.float16,
        torch.float64,
        torch.complex64,
    ]

    def sample(number: int) -> tuple[torch.Tensor, ...]:
        return tuple((torch.arange(size) % 2 + number).to(it) for size, it in enumerate(kinds))

    samples = [sample(number) for number in range(9)]
    for where in ("disk", "memory"):
        cached = opened(p, samples, where, tmp_path / where)
        for _ in range(2):
            for indices in ([3], [8, 1, 1]):
                found = cached.__getitems__(indices)
                chosen = [samples[index] for index in indices]
                expected = tuple(map(torch.stack, zip(*chosen, strict=True)))
                assert equal(found, expected)
                assert [part.dtype for part in found] == kinds


def write_images(folder: Path, count: int, start: int = 0) -> None:
    for number in range(count):
        target = folder / f"class{number % 2}"
        target.mkdir(parents=True, exist_ok=True)
        pixels = torch.randint(
            256, (20, 20, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(number)
        )
        Image.fromarray(pixels.numpy()).save(target / f"{start + number}.jpg")


@pytest.fixture(scope="module")
def images(package: MakePackage) -> Package:
    found: Package = package("resnet", "cache")
    return found


def train_images(p: Package, folder: Path, *more: str) -> None:
    chosen = [
        f"--data.path={folder.parent}/images",
        "--data.size=16",
        "--train.batch_size=8",
        "--cache.enabled=true",
    ]
    p.train_here(folder, *chosen, "--train.steps=3", f"--cache.folder={folder.parent}/cache", *more)


def test_changed_config_or_files_make_a_new_file(images: Package, tmp_path: Path) -> None:
    write_images(tmp_path / "images", 30)
    found = []
    for number, more in enumerate(
        [
            (),
            (),
            ("--data.size=12",),
            ("--optim.lr=1e-3",),
            (),
        ]
    ):
        if number == 4:
            write_images(tmp_path / "images", 2, 100)
        train_images(images, tmp_path / f"run{number}", *more)
        found.append(len(list((tmp_path / "cache").iterdir())))
    assert found == [2, 2, 4, 4, 6]


def key(p: Package, path: Path, **changes: Any) -> str:
    """Return the key of a cache of images in a folder."""
    cfg = p.data.DataConfig(path=path)
    spec = p.data.Spec(
        3,
        16,
        ("class0", "class1"),
        (0.5,),
        (0.5,),
    )
    made = p.components.cache.Cache(p.components.cache.CacheConfig(), None)
    return str(made._fingerprint(cfg, dataclasses.replace(spec, **changes)))


def test_key_of_a_resumed_run_is_that_of_its_spec(images: Package, tmp_path: Path) -> None:
    write_images(tmp_path / "photos", 4)
    before = key(images, tmp_path / "photos")
    assert key(images, tmp_path / "photos") == before
    assert key(images, tmp_path / "photos", classes=("a", "class0", "class1")) != before
    assert key(images, tmp_path / "photos", mean=(0.4,)) != before


def replace_file(file: Path) -> None:
    """Replace a file by another one of the same size and time."""
    found = file.stat()
    other = file.with_name("other")
    other.write_bytes(bytes(found.st_size))
    other.rename(file)
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))


def turn(link: Path, target: Path) -> None:
    link.unlink()
    link.symlink_to(target)


CHANGES: dict[str, Callable[[Path, Path], Any]] = {
    "new file": lambda _, real: write_images(real, 1, 100),
    "other file of the same size": lambda _, real: replace_file(real / "class0/0.jpg"),
    "removed file": lambda _, real: (real / "class1/1.jpg").unlink(),
    "renamed file": lambda _, real: (real / "class1/1.jpg").rename(real / "class1/0.jpg"),
    "deeper file": lambda _, real: write_images(real / "class0/deep/er", 1),
    "link to another folder": lambda photos, real: turn(photos / "class1", real / "class0"),
    "second link to another folder": lambda photos, real: turn(photos / "class2", real / "class1"),
    "link to another file": lambda photos, real: turn(photos / "single.jpg", real / "class1/1.jpg"),
    "file behind a link": lambda _, real: replace_file(real / "class0/0.jpg"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_key_follows_links(
    images: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """To folders, to a folder of two names, to files, in a circle, broken, and the path itself."""
    monkeypatch.setenv("HOME", str(tmp_path))
    photos = tmp_path / "photos"
    real = tmp_path / "elsewhere"
    write_images(real, 4)
    photos.mkdir()
    for name in ("class0", "class1"):
        (photos / name).symlink_to(real / name)
    (photos / "class2").symlink_to(real / "class0")
    (photos / "single.jpg").symlink_to(real / "class0/0.jpg")
    (photos / "broken").symlink_to(tmp_path / "nowhere")
    (real / "class0/up").symlink_to(photos)
    (tmp_path / "link").symlink_to(photos)
    paths = [Path("~/photos"), tmp_path / "link"]
    before = [key(images, path) for path in paths]
    assert [key(images, path) for path in paths] == before
    CHANGES[change](photos, real)
    assert all(key(images, path) != old for path, old in zip(paths, before, strict=True))


@pytest.mark.parametrize("linked", [False, True])
def test_key_of_a_file_is_of_its_content(images: Package, tmp_path: Path, linked: bool) -> None:
    file = tmp_path / "table.csv"
    path = tmp_path / "table.csv"
    file.write_text("a,b\n1,2\n")
    if linked:
        path = tmp_path / "link.csv"
        path.symlink_to(file)
    before = key(images, path)
    replace_file(file)
    assert key(images, path) != before


def test_loader_workers_and_ranks_share_the_file(images: Package, tmp_path: Path) -> None:
    write_images(tmp_path / "images", 40)
    train_images(images, tmp_path / "without", "--cache.enabled=false")
    train_images(images, tmp_path / "workers", "--loader.num_workers=2")
    train_images(images, tmp_path / "again")
    for name in ("workers", "again"):
        assert equal(saved(tmp_path / name)["model"], saved(tmp_path / "without")["model"])


def write_all(cached: Any, seed: int) -> None:
    for _ in range(20):
        order = torch.randperm(9, generator=torch.Generator().manual_seed(seed)).tolist()
        for index in order:
            assert cached.__getitems__([index])[0]["pair"][0] == index
        seed += 1


def test_processes_that_write_at_the_same_time_leave_whole_records(
    p: Package, tmp_path: Path
) -> None:
    cached = opened(p, Boxes(), "disk", tmp_path)
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=write_all, args=(cached, 100 * number)) for number in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    content = cached.file.read_bytes()
    assert len(content) == 9 * cached.size
    cached.source.dataset = None  # so that nothing can be decoded
    assert [sample["pair"][0] for sample in cached.__getitems__([*range(9)])] == list(range(9))
    cached.file.write_bytes(content[:-1])
    with pytest.raises(TypeError):
        cached.__getitems__([8])


def test_full_disk_is_one_line(
    p: Package,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        p.train_here(tmp_path, *SIX, "--cache.enabled=true")


def test_unreadable_sample_is_one_line(p: Package, tmp_path: Path) -> None:
    for where in ("disk", "memory"):
        chosen = ["--data.kind=unreadable", f"--cache.where={where}", "--train.steps=30"]
        with pytest.raises(p.errors.UserError, match=r"cannot read images/17\.png"):
            p.train_here(tmp_path / where, *chosen, "--cache.enabled=true")


def test_samples_of_several_shapes_are_refused(p: Package, tmp_path: Path) -> None:
    with pytest.raises(
        p.errors.UserError,
        match=r"needs samples of one shape, and sample \d+ differs from sample 0",
    ):
        p.train_here(tmp_path, *SIX, "--data.kind=collated", "--cache.enabled=true")
