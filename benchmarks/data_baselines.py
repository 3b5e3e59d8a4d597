"""Compute what simple methods reach on the validation data of some models, for docs/models/.

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
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import torch
from projects import ROOT, render_project
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from torch import Tensor

PAGES = ROOT / "docs" / "models"
WORDS = r"\w+|[^\w\s]"
"""A word, or a sign."""
Texts = tuple[list[str], list[int]]
"""Texts, and the class of each."""
ADDED = 0.1
"""Added to each count of a histogram, so that values that only the validation data have count."""


def main() -> None:
    """Render the projects, compute the tables, and write them."""
    with tempfile.TemporaryDirectory() as folder:
        for model in ("gpt", "vae", "bert"):
            project = render_project(Path(folder), f"{model}_data", model)
            sys.path.insert(0, str(project / "src"))

        train, val = read_library("gpt_data")
        rows = compressors(val) | histograms(train, val) | after_training(train, val)
        write("gpt", "bits per byte", rows)

        images, new_images = read_digits("vae_data")
        rows = compressors([b"".join(new_images)]) | pixel_histogram(images, new_images)
        write("vae", "bits per pixel", rows)
        write("diffusion", "loss", velocities(images, new_images))

        statements, new_statements = read_statements("bert_data")
        rows = by_frequency(statements, new_statements) | regressions(statements, new_statements)
        write("bert", "accuracy", rows, sign=-1)


def read_library(package: str) -> tuple[list[bytes], list[bytes]]:
    """The files of the standard library for training and for validation."""
    train, val, _ = import_module(f"{package}.data").library()
    texts = [file.read_bytes() for file in train]
    new_texts = [file.read_bytes() for file in val]
    return texts, new_texts


def read_digits(package: str) -> tuple[list[bytes], list[bytes]]:
    """The images for training and for validation, one byte per pixel."""
    data = import_module(f"{package}.data")
    splits = []
    for split in data.load(data.DataConfig())[:2]:
        indices = list(range(len(split)))
        images = split.__getitems__(indices)[0]
        rows = images.flatten(1).tolist()
        splits.append([bytes(row) for row in rows])
    return splits[0], splits[1]


def read_statements(package: str) -> tuple[Texts, Texts]:
    """The statements for training and for validation, with the numbers of their keywords."""
    data = import_module(f"{package}.data")
    numbers = {keyword: number for number, keyword in enumerate(data.KEYWORDS)}
    splits = []
    for frame in data.statements():
        labels = [numbers[keyword] for keyword in frame["label"]]
        splits.append((list(frame["text"]), labels))
    return splits[0], splits[1]


def bits(compressed: int, data: bytes) -> float:
    """Bits per byte of the data, from its compressed size in bytes."""
    return 8 * compressed / len(data)


def xz(data: bytes) -> int:
    """Size after `xz -9e`, whose dictionary of 64 MiB holds the whole standard library."""
    return len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))


def compressors(files: Sequence[bytes]) -> dict[str, float]:
    """Bits per byte of the files by programs that have seen nothing else."""
    stream = b"".join(files)
    results = {}
    if len(files) > 1:
        size = sum(len(gzip.compress(file, 9)) for file in files)
        results["gzip -9, file by file"] = bits(size, stream)
    sizes = {
        "gzip -9": len(gzip.compress(stream, 9)),
        "bzip2 -9": len(bz2.compress(stream, 9)),
        "xz -9e": xz(stream),
    }
    for name, size in sizes.items():
        results[name] = bits(size, stream)
    return results


def histograms(train: Sequence[bytes], val: Sequence[bytes]) -> dict[str, float]:
    """Bits per byte from the training text's frequencies of bytes, and of pairs of them."""
    seen = b"".join(train)
    new = b"".join(val)
    alone = Counter(seen)
    pairs = Counter(pairwise(seen))
    new_pairs = Counter(pairwise(new))
    total = 0.0
    for pair, count in new_pairs.items():
        before = alone[pair[0]] + 256 * ADDED
        probability = (pairs[pair] + ADDED) / before
        total -= count * math.log2(probability)
    return {
        "frequencies of bytes in the training text": histogram_bits(alone, new, 256),
        "frequencies of pairs of bytes in the training text": total / new_pairs.total(),
    }


def histogram_bits(
    seen: Counter[int],
    new: Iterable[int],
    values: int,
) -> float:
    """Bits per new entry, from the frequencies of those seen, among a number of possible values."""
    total = sum(seen.values()) + values * ADDED
    return fmean(-math.log2((seen[entry] + ADDED) / total) for entry in new)


def after_training(train: Sequence[bytes], val: Sequence[bytes]) -> dict[str, float]:
    """Bits per byte that the validation text adds to the training text, in one stream."""
    seen = b"".join(train)
    new = b"".join(val)
    added = xz(seen + new) - xz(seen)
    return {"xz -9e, after the training text in one stream": bits(added, new)}


def pixel_histogram(train: Sequence[bytes], val: Sequence[bytes]) -> dict[str, float]:
    """Bits per pixel from the frequencies of each pixel's levels, of those that occur at all."""
    levels = len(set(b"".join(train)))
    costs = []
    for pixel in range(len(train[0])):
        seen = Counter(image[pixel] for image in train)
        new = [image[pixel] for image in val]
        costs.append(histogram_bits(seen, new, levels))
    name = f"frequencies of the {levels} levels that occur, for each pixel in the training images"
    return {name: fmean(costs)}


def velocities(
    train: Sequence[bytes],
    val: Sequence[bytes],
    times: int = 32,
) -> dict[str, float]:
    """Loss of predictors of diffusion's velocity, image - noise: the mean over intervals of time.

    Each is the conditional mean of the velocity under a distribution of images that is fitted to
    those for training. The least variance, and the width of the Gaussians, are chosen by the
    validation images: in favor of the baseline.
    """
    seen = torch.tensor([list(image) for image in train], dtype=torch.float64)
    new = torch.tensor([list(image) for image in val], dtype=torch.float64)
    center = seen.mean()
    scale = seen.std(correction=0)
    seen = (seen - center) / scale
    new = (new - center) / scale
    mean = seen.mean(0)
    covariances = (seen - mean).T.cov(correction=0)
    variances, basis = torch.linalg.eigh(covariances)
    squares = ((new - mean) @ basis).square().mean(0)

    generator = torch.Generator().manual_seed(0)
    linear: dict[float, list[float]] = defaultdict(list)
    kernel: dict[float, list[float]] = defaultdict(list)
    for number in range(times):
        time = (number + 0.5) / times
        noise = torch.randn(new.shape, generator=generator, dtype=torch.float64)
        for least in (1e-5, 1e-4, 1e-3, 1e-2):
            change = slope(variances.clamp(least), time)
            # the mean over all noise
            loss = squares * (1 - time * change) ** 2
            loss += (1 + (1 - time) * change) ** 2
            linear[least].append(loss.mean().item())
        for width in (0.2, 0.3, 0.35, 0.4, 0.5):
            kernel[width].append(kernel_loss(seen, new, noise, time, width))

    constant = 1 + squares.mean().item()
    covariance = (
        "the best linear predictor at each time, from the covariance of the training images"
    )
    return {
        "the best constant for each pixel, its mean in the training images": constant,
        covariance: min(map(fmean, linear.values())),
        "the best predictor for a Gaussian around each of the training images": min(
            map(fmean, kernel.values())
        ),
    }


def slope(variance: Tensor, time: float) -> Tensor:
    """How the mean velocity of a Gaussian changes with the noisy image."""
    rest = 1 - time
    return (time * variance - rest) / (time**2 * variance + rest**2)


def kernel_loss(
    seen: Tensor,
    new: Tensor,
    noise: Tensor,
    time: float,
    width: float,
) -> float:
    """Loss of the mean velocity under Gaussians of a width around the training images."""
    rest = 1 - time
    point = time * new + rest * noise
    variance = (time * width) ** 2 + rest**2
    distances = torch.cdist(point, time * seen).square()
    weights = torch.softmax(-distances / (2 * variance), 1)
    nearest = weights @ seen
    change = slope(torch.tensor(width**2), time)
    velocity = nearest + change * (point - time * nearest)
    error = velocity - (new - noise)
    return error.square().mean().item()


def by_frequency(train: Texts, val: Texts) -> dict[str, float]:
    """Accuracy of the most frequent class, and of naive Bayes on the words of a text."""
    counts = Counter(train[1])
    words = {label: Counter[str]() for label in counts}
    for text, label in zip(*train, strict=True):
        words[label].update(re.findall(WORDS, text))
    vocabulary = len(set().union(*words.values()))

    def best(text: str) -> int:
        scores = {}
        for label, count in counts.items():
            scores[label] = math.log(count)
            total = words[label].total() + vocabulary
            for word in re.findall(WORDS, text):
                scores[label] += math.log((words[label][word] + 1) / total)
        return max(scores, key=scores.__getitem__)

    most = counts.most_common(1)[0][0]
    right = [best(text) == label for text, label in zip(*val, strict=True)]
    return {
        "the most frequent keyword": fmean(label == most for label in val[1]),
        "naive Bayes on words and signs": fmean(right),
    }


def regressions(train: Texts, val: Texts) -> dict[str, float]:
    """Accuracy of logistic regression on counts of words and signs, and of pairs of neighbors."""
    results = {}
    for longest, pairs in ((1, ""), (2, ", and pairs of neighbors")):
        counts = CountVectorizer(token_pattern=WORDS, lowercase=False, ngram_range=(1, longest))
        model = LogisticRegression(max_iter=300)
        model.fit(counts.fit_transform(train[0]), train[1])
        name = f"logistic regression on words and signs{pairs}"
        results[name] = model.score(counts.transform(val[0]), val[1])
    return results


def write(
    page: str,
    unit: str,
    rows: dict[str, float],
    sign: int = 1,
) -> None:
    """Replace the rows of the page's table: the lowest last, or with `sign` -1 the highest."""
    file = PAGES / f"{page}.md"
    body = ""
    for name, value in sorted(rows.items(), key=lambda row: -sign * row[1]):
        body += f"| {name} | {value:.2f} |\n"
    table = rf"(\| baseline \| {unit} \|\n\|[-|]+\|\n)(\|.*\n)*"
    text, count = re.subn(table, lambda head: head[1] + body, file.read_text())
    if count != 1:
        sys.exit(f"{file} has no table | baseline | {unit} |")
    file.write_text(text)
    print(f"{page}:\n{body}", flush=True)


if __name__ == "__main__":
    main()
