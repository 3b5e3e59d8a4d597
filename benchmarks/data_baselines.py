"""Compute what simple methods reach on the validation data of gpt, lstm, vae, diffusion and bert, for docs/models/.

    python benchmarks/data_baselines.py

Text is that of Python's standard library, split as in a project, with the Python that runs this
program. Everything but the project's data.py, torch for the velocities of diffusion and
scikit-learn's regressions for bert, is from the standard library; three minutes, most of them for
xz on all of the training text.
"""

import bz2
import gzip
import lzma
import math
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "models"
WORDS = r"\w+|[^\w\s]"
"""A word, or a sign."""
Texts = tuple[list[str], list[int]]
"""Texts, and the class of each."""
ADDED = 0.1
"""Added to each count of a histogram, so that values that are new in the validation data have a probability."""


def main() -> None:
    """Render the projects, compute the tables, and write them."""
    with tempfile.TemporaryDirectory() as folder:
        for model in ("gpt", "vae", "bert"):
            new = [
                sys.executable,
                "-m",
                "fastproj",
                "new",
                f"{model}_data",
                "--model",
                model,
                "--yes",
                "--no-git",
            ]
            subprocess.run([*new, "--output", folder], check=True, stdout=subprocess.DEVNULL)
            sys.path.insert(0, f"{folder}/{model}_data/src")
        train, val = read_library("gpt_data")
        write(
            "gpt",
            "bits per byte",
            {**compressors(val), **histograms(train, val), **after_training(train, val)},
        )
        images, new_images = read_digits("vae_data")
        write(
            "vae",
            "bits per pixel",
            {**compressors([b"".join(new_images)]), **pixel_histogram(images, new_images)},
        )
        write("diffusion", "loss", velocities(images, new_images))
        statements = read_statements("bert_data")
        write("bert", "accuracy", {**by_frequency(*statements), **regressions(*statements)}, -1)


def read_library(package: str) -> tuple[list[bytes], list[bytes]]:
    """The files of the standard library for training and for validation."""
    train, val, _ = import_module(f"{package}.data").library()
    return [file.read_bytes() for file in train], [file.read_bytes() for file in val]


def read_digits(package: str) -> tuple[list[bytes], list[bytes]]:
    """The images for training and for validation, one byte per pixel."""
    data = import_module(f"{package}.data")
    splits = data.load(data.DataConfig())[:2]
    every = (split.__getitems__(list(range(len(split))))[0] for split in splits)
    train, val = ([bytes(image) for image in images.flatten(1).tolist()] for images in every)
    return train, val


def read_statements(package: str) -> tuple[Texts, Texts]:
    """The statements for training and for validation, with the numbers of their keywords."""
    data = import_module(f"{package}.data")
    numbers = {keyword: number for number, keyword in enumerate(data.KEYWORDS)}
    train, val = (
        (list(frame["text"]), [numbers[it] for it in frame["label"]]) for frame in data.statements()
    )
    return train, val


def bits(compressed: int, data: bytes) -> float:
    """Bits per byte of the data, from its compressed size in bytes."""
    return 8 * compressed / len(data)


def xz(data: bytes) -> int:
    """Size after `xz -9e`, whose dictionary of 64 MiB holds the whole standard library."""
    return len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))


def compressors(files: Sequence[bytes]) -> dict[str, float]:
    """Bits per byte of the files by programs that have seen nothing else."""
    stream = b"".join(files)
    found = {
        "gzip -9": bits(len(gzip.compress(stream, 9)), stream),
        "bzip2 -9": bits(len(bz2.compress(stream, 9)), stream),
        "xz -9e": bits(xz(stream), stream),
    }
    if len(files) == 1:
        return found
    return {
        "gzip -9, file by file": bits(sum(len(gzip.compress(file, 9)) for file in files), stream),
        **found,
    }


def histograms(train: Sequence[bytes], val: Sequence[bytes]) -> dict[str, float]:
    """Bits per byte from the frequencies of bytes, alone or after the byte before, in the training text."""
    seen, new = b"".join(train), b"".join(val)
    alone, pairs = Counter(seen), Counter(pairwise(seen))
    costs = {
        pair: -math.log2((pairs[pair] + ADDED) / (alone[pair[0]] + 256 * ADDED))
        for pair in set(pairwise(new))
    }
    return {
        "frequencies of bytes in the training text": histogram_bits(alone, new, 256),
        "frequencies of pairs of bytes in the training text": fmean(
            costs[pair] for pair in pairwise(new)
        ),
    }


def histogram_bits(seen: Counter[int], new: Iterable[int], values: int) -> float:
    """Bits per new entry, from the frequencies of those seen, among a number of possible values."""
    total = sum(seen.values()) + values * ADDED
    return fmean(-math.log2((seen[entry] + ADDED) / total) for entry in new)


def after_training(train: Sequence[bytes], val: Sequence[bytes]) -> dict[str, float]:
    """Bits per byte that the validation text adds to the training text, in one stream."""
    seen, new = b"".join(train), b"".join(val)
    return {"xz -9e, after the training text in one stream": bits(xz(seen + new) - xz(seen), new)}


def pixel_histogram(train: Sequence[bytes], val: Sequence[bytes]) -> dict[str, float]:
    """Bits per pixel from the frequencies of the levels of each pixel, among the levels that occur at all."""
    levels = len(set(b"".join(train)))
    columns = zip(zip(*train, strict=True), zip(*val, strict=True), strict=True)
    costs = [histogram_bits(Counter(seen), new, levels) for seen, new in columns]
    return {
        f"frequencies of the {levels} levels that occur, for each pixel in the training images": fmean(
            costs
        )
    }


def velocities(train: Sequence[bytes], val: Sequence[bytes], times: int = 32) -> dict[str, float]:
    """Loss of predictors of diffusion's velocity, image - noise, as the mean over equal intervals of time.

    Each is the conditional mean of the velocity under a distribution of images that is fitted to
    those for training. The least variance, and the width of the Gaussians, are chosen by the
    validation images: in favor of the baseline.
    """
    import torch  # imported here because text does not need it

    seen, new = (
        torch.tensor([list(image) for image in split], dtype=torch.float64)
        for split in (train, val)
    )
    center, scale = seen.mean(), seen.std(correction=0)
    seen, new = (seen - center) / scale, (new - center) / scale
    mean = seen.mean(0)
    variances, basis = torch.linalg.eigh((seen - mean).T.cov(correction=0))
    squares = ((new - mean) @ basis).square().mean(0)
    generator = torch.Generator().manual_seed(0)
    draws = [torch.randn(new.shape, generator=generator, dtype=torch.float64) for _ in range(times)]
    found: dict[str, list[float]] = {}
    for number, noise in enumerate(draws):
        time = (number + 0.5) / times
        point, target = time * new + (1 - time) * noise, new - noise

        def slope(variance: torch.Tensor, time: float = time) -> torch.Tensor:
            return (time * variance - (1 - time)) / (time**2 * variance + (1 - time) ** 2)

        for least in (1e-5, 1e-4, 1e-3, 1e-2):
            change = slope(variances.clamp(least))
            # the mean over all noise
            loss = squares * (1 - time * change) ** 2 + (1 + (1 - time) * change) ** 2
            found.setdefault(f"linear, {least}", []).append(loss.mean().item())
        for width in (0.2, 0.3, 0.35, 0.4, 0.5):
            distances = torch.cdist(point, time * seen).square() / (
                2 * ((time * width) ** 2 + (1 - time) ** 2)
            )
            nearest = torch.softmax(-distances, 1) @ seen
            error = nearest + slope(torch.tensor(width**2)) * (point - time * nearest) - target
            found.setdefault(f"kernel, {width}", []).append(error.square().mean().item())
    means = {name: fmean(losses) for name, losses in found.items()}
    best = {
        kind: min(value for name, value in means.items() if name.startswith(kind))
        for kind in ("linear", "kernel")
    }
    return {
        "the best constant for each pixel, its mean in the training images": 1
        + squares.mean().item(),
        "the best linear predictor at each time, from the covariance of the training images": best[
            "linear"
        ],
        "the best predictor for a Gaussian around each of the training images": best["kernel"],
    }


def by_frequency(train: Texts, val: Texts) -> dict[str, float]:
    """Accuracy of the most frequent class, and of naive Bayes on the words of a text, in any order."""
    counts = Counter(train[1])
    words = {label: Counter[str]() for label in counts}
    for text, label in zip(*train, strict=True):
        words[label].update(re.findall(WORDS, text))
    size, total = (
        len(set().union(*words.values())),
        {label: sum(found.values()) for label, found in words.items()},
    )

    def best(text: str) -> int:
        found = re.findall(WORDS, text)
        return max(
            counts,
            key=lambda it: (
                math.log(counts[it])
                + sum(math.log((words[it][word] + 1) / (total[it] + size)) for word in found)
            ),
        )

    (most, _), *_ = counts.most_common()
    return {
        "the most frequent keyword": fmean(label == most for label in val[1]),
        "naive Bayes on words and signs": fmean(
            best(text) == label for text, label in zip(*val, strict=True)
        ),
    }


def regressions(train: Texts, val: Texts) -> dict[str, float]:
    """Accuracy of logistic regression on the counts of words and signs, and of pairs of neighbors, too."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    found = {}
    for most, pairs in ((1, ""), (2, ", and pairs of neighbors")):
        counts = CountVectorizer(token_pattern=WORDS, lowercase=False, ngram_range=(1, most))
        model = LogisticRegression(max_iter=300).fit(counts.fit_transform(train[0]), train[1])
        found[f"logistic regression on words and signs{pairs}"] = model.score(
            counts.transform(val[0]), val[1]
        )
    return found


def write(page: str, unit: str, rows: dict[str, float], sign: int = 1) -> None:
    """Replace the rows of the page's table of baselines, the best last: the lowest, or the highest with `sign` -1."""
    file = PAGES / f"{page}.md"
    body = "".join(
        f"| {name} | {value:.2f} |\n"
        for name, value in sorted(rows.items(), key=lambda row: -sign * row[1])
    )
    text, count = re.subn(
        rf"(\| baseline \| {unit} \|\n\|[-|]+\|\n)(\|.*\n)*",
        lambda head: head[1] + body,
        file.read_text(),
    )
    if count != 1:
        sys.exit(f"{file} has no table | baseline | {unit} |")
    file.write_text(text)
    print(f"{page}:\n{body}", flush=True)


if __name__ == "__main__":
    main()
