"""Predictions or samples of a trained run: a CSV file, PNG files or text.

The validation set or samples; your own files; or text from a language model:

    python -m <package>.components.predict runs/first
    python -m <package>.components.predict runs/first new.csv more.csv
    python -m <package>.components.predict runs/first --prompt "import "
"""

import argparse
import csv
from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import data
from ..contracts import sample_method
from ..errors import UserError, one_line
from ..evaluate import load_run
from ..loader import load_batch

Row = dict[str, Any]
Samples = tuple[list[str], list[Any]]
"""Names, and what the dataset returns for each."""


class Prediction(NamedTuple):
    """What `predict` returns for a sample."""

    name: str
    output: Tensor
    target: Tensor | None  # none of your own files
    folder: Path


class Kind(NamedTuple):
    """How a kind of data is read from your own files, and how a prediction is written."""

    read: Callable[[list[Path], Any, Any], Samples]
    rows: Callable[[Prediction, Any], list[Row]]


@torch.no_grad()
def predict(options: argparse.Namespace) -> None:
    """Write the predictions of a run's best weights, in fp32."""
    cfg, net, dataset, spec = load_run(
        options.run,
        options.device,
    )
    net.eval()
    sample = sample_method(net)
    writes_text = getattr(spec, "vocabulary", 0) and not hasattr(spec, "classes")
    if options.files and (writes_text or sample):
        name = type(net).__name__
        raise UserError(f"{name} reads no files, but {options.files[0]} is given: leave it out")
    if writes_text:
        text = generate(net, spec, options)
        print(options.prompt + text)
        return
    folder = options.output or options.run / "predictions"
    folder.mkdir(parents=True, exist_ok=True)
    if sample:
        device = next(net.parameters()).device
        generator = torch.Generator(device).manual_seed(options.seed)
        images = sample(options.count, generator)
        save_grid(images, folder / "samples.png")
        return
    names = [f"{number:05}" for number in range(len(dataset))]
    kind = kind_of(spec)
    if options.files:
        names, dataset = read_files(
            kind,
            options.files,
            spec,
            cfg.data,
        )
    prepare = data.Prepare(spec, cfg.data)
    outputs = predictions(net, dataset, prepare, options.batch)
    rows: list[Row] = []
    for name, (output, target) in zip(names, outputs, strict=True):
        true = None if options.files else target
        prediction = Prediction(name, output, true, folder)
        rows += kind.rows(prediction, spec)
    write_table(rows, folder / "predictions.csv")


def write_table(
    rows: list[Row],
    file: Path,
) -> None:
    """Write rows as CSV."""
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    print(f"wrote {file}")


def generate(
    net: Any,
    spec: Any,
    options: argparse.Namespace,
) -> str:
    """Continue the prompt, one token at a time; the oldest tokens leave a full context."""
    device = next(net.parameters()).device
    generator = torch.Generator().manual_seed(options.seed)
    content = getattr(spec, "tokenizer", "")  # none: tokens are bytes
    tokens = list(options.prompt.encode())
    if content:
        tokenizer = import_module("tokenizers").Tokenizer.from_str(content)
        tokens = tokenizer.encode(options.prompt, add_special_tokens=False).ids
    if not tokens:
        raise UserError(f"--prompt {options.prompt!r} has no tokens: give another")
    given = len(tokens)
    for _ in range(options.tokens):
        context = torch.tensor(
            [tokens[-spec.context :]],
            device=device,
        )
        logits = net.predict(context)[0, -1].float().cpu()
        logits = logits / max(options.temperature, 1e-6)  # 0: the most likely token
        token = torch.multinomial(
            logits.softmax(0),
            1,
            generator=generator,
        )
        tokens.append(int(token))
    new = tokens[given:]
    return str(tokenizer.decode(new)) if content else bytes(new).decode(errors="replace")


def save_grid(
    images: Tensor,
    file: Path,
) -> None:
    """Write images (n, channels, height, width), from 0 to 1, as one PNG; enlarge small ones."""
    factor = max(1, 64 // images.shape[-1])
    images = F.interpolate(
        images.float().cpu(),
        scale_factor=factor,
    )
    side = int((len(images) - 1) ** 0.5) + 1  # images in a row
    missing = -len(images) % side
    images = F.pad(
        images,
        (1, 1, 1, 1, 0, 0, 0, missing),
    )
    tiles = images.unflatten(0, (-1, side))
    tiles = tiles.permute(0, 3, 1, 4, 2)  # rows, height, columns, width, channels
    pixels = tiles.flatten(0, 1).flatten(1, 2)
    pixels = (255 * pixels).round().byte().squeeze(2)
    import_module("PIL.Image").fromarray(pixels.numpy()).save(file)
    print(f"wrote {file}")


def predictions(
    net: Any,
    dataset: Any,
    prepare: Any,
    size: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the output and the target of each sample, from batches of this size."""
    device = next(net.parameters()).device
    needed = signature(net.predict).parameters
    every = signature(net.forward).parameters
    indices = list(range(len(dataset)))
    for begin in range(0, len(dataset), size):
        batch = load_batch(dataset, indices[begin : begin + size])
        batch = prepare(batch, False, torch.default_generator)
        if not isinstance(batch, dict):
            batch = dict(zip(every, batch, strict=False))
        if not needed.keys() <= batch.keys():
            name = type(net).__name__
            raise UserError(f"`predict` of {name} must take inputs of `forward`, by the same names")
        inputs = {name: batch.pop(name).to(device) for name in needed}
        outputs = net.predict(**inputs).float().cpu()
        (targets,) = batch.values()
        yield from zip(outputs, targets.cpu(), strict=True)


def read_files(
    kind: Kind,
    files: list[Path],
    spec: Any,
    cfg: Any,
) -> Samples:
    """Read your own files with the statistics, categories and tokens of the training."""
    try:
        names, samples = kind.read(files, spec, cfg)
        if not names:
            raise ValueError("no samples")
    except (OSError, ValueError, KeyError) as error:
        why = f"no column {error}" if isinstance(error, KeyError) else error
        listed = ", ".join(map(str, files))
        raise UserError(f"cannot read {listed}: {why}") from error
    return names, samples


def read_images(
    files: list[Path],
    spec: Any,
    cfg: Any,
) -> Samples:
    """Read images, and those below folders, as data.py does."""
    find_files = data.__dict__["find_files"]  # which only these kinds of data.py have
    decode = data.__dict__["decode"]
    images: list[Path] = []
    for file in files:
        if file.is_dir():
            inside = find_files(file)
            images += [path for path in inside if path.suffix.lower() in data.__dict__["FORMATS"]]
        else:
            images.append(file)
    samples = [(decode(image, spec), 0) for image in images]
    return list(map(str, images)), samples


def read_frames(
    files: list[Path],
    cfg: Any,
    **options: Any,
) -> list[Any]:
    """Read CSV and Parquet files with pandas."""
    pandas = import_module("pandas")
    if getattr(cfg, "decimal", "point") == "comma":
        options |= {"sep": ";", "decimal": ","}
    frames = []
    for file in files:
        if file.suffix.lower() == ".parquet":
            frames.append(pandas.read_parquet(file))
        else:
            frames.append(pandas.read_csv(file, **options))
    return frames


def read_table(
    files: list[Path],
    spec: Any,
    cfg: Any,
) -> Samples:
    """Read the rows of tables."""
    read = data.__dict__["read_table"]  # which only this kind of data.py has
    encode = data.__dict__["encode"]
    samples: list[Any] = []
    for file in files:
        numbers, codes = encode(read(file, cfg, "the table"), spec)
        targets = torch.zeros(len(numbers))
        samples += zip(numbers, codes, targets, strict=True)
    names = [str(number) for number in range(len(samples))]
    return names, samples


def read_texts(
    files: list[Path],
    spec: Any,
    cfg: Any,
) -> Samples:
    """Read the texts in a column of tables."""
    kind = data.__dict__  # which has these functions only for texts
    texts: list[str] = []
    for file in files:
        table = kind["read_table"](file, cfg.encoding)
        texts += kind["column"](table, cfg.text, file).tolist()
    tokens, lengths = kind["encode"](texts, spec)
    samples = [(ids, length, 0) for ids, length in zip(tokens, lengths, strict=True)]
    return texts, samples


def read_series(
    files: list[Path],
    spec: Any,
    cfg: Any,
) -> Samples:
    """Read the last rows of each series, which the forecast continues."""
    read = data.__dict__["read_series"]  # which only this kind of data.py has
    mean = torch.tensor(spec.mean, dtype=torch.float64)
    std = torch.tensor(spec.std, dtype=torch.float64)
    samples = []
    for file in files:
        frame, _ = read(file, cfg, "the series", spec.columns)
        end = frame.ffill().tail(spec.context)
        if len(end) < spec.context:
            raise UserError(
                f"the model forecasts from {spec.context} rows of a series: give files with more"
            )
        values = (torch.tensor(end.to_numpy()) - mean) / std
        padded = F.pad(
            values.float(),
            (0, 0, 0, spec.horizon),
        )
        samples.append((padded,))
    return list(map(str, files)), samples


def read_nothing(
    files: list[Path],
    spec: Any,
    cfg: Any,
) -> Samples:
    """Refuse to read files for a data.py of your own."""
    raise UserError("components/predict.py reads no files for this data.py: add them to `KINDS`")


def value_rows(
    prediction: Prediction,
    spec: Any,
) -> list[Row]:
    """Return the class with the probabilities of all, or a number."""
    row: Row = {"sample": prediction.name}
    output = prediction.output
    target = prediction.target
    classes = getattr(spec, "classes", ())
    if classes and output.shape == (len(classes),):
        row["predicted"] = classes[int(output.argmax())]
        if target is not None:
            row["label"] = classes[int(target)]
        for name, share in zip(classes, output.softmax(0).tolist(), strict=True):
            row[f"p({name})"] = f"{share:.6g}"
    elif output.ndim == 0:
        row["predicted"] = output.item()
        if target is not None:
            mean = getattr(spec, "target_mean", 0)
            std = getattr(spec, "target_std", 1)
            row["target"] = target.item() * std + mean
    else:
        shape = tuple(output.shape)
        raise UserError(
            f"`predict` returns {shape} per sample: add a row for it in components/predict.py"
        )
    return [row]


def mask_rows(
    prediction: Prediction,
    spec: Any,
) -> list[Row]:
    """Write a mask with the values of the training masks; it has the size of your own image."""
    pil = import_module("PIL.Image")
    ops = import_module("PIL.ImageOps")
    name = prediction.name
    values = torch.tensor([int(value) for value in spec.classes])
    mask = values[prediction.output.argmax(0)].byte()
    image = pil.fromarray(mask.numpy())
    colors = torch.arange(256).outer(torch.tensor([67, 151, 211]))  # 0 is black
    image.putpalette(bytes((colors % 256).flatten().tolist()))
    if prediction.target is None:
        with pil.open(name) as opened:
            size = ops.exif_transpose(opened).size
        image = image.resize(size, pil.Resampling.NEAREST)
    file = name.strip("/").replace("/", "_") + ".png"
    image.save(prediction.folder / file)
    return [{"sample": name, "mask": file}]


def forecast_rows(
    prediction: Prediction,
    spec: Any,
) -> list[Row]:
    """Return a row for each step of a forecast, in the units of the columns."""
    mean = torch.tensor(spec.mean, dtype=torch.float64)
    std = torch.tensor(spec.std, dtype=torch.float64)
    names = list(spec.columns)
    values = prediction.output * std + mean
    if prediction.target is not None:
        names += [f"{name} (true)" for name in spec.columns]
        true = prediction.target * std + mean
        values = torch.cat([values, true], 1)
    rows = []
    for step, numbers in enumerate(values.tolist(), 1):
        row: Row = {"sample": prediction.name, "step": step}
        row |= zip(names, numbers, strict=True)
        rows.append(row)
    return rows


KINDS = {
    "ignored": Kind(read_images, mask_rows),
    "channels": Kind(read_images, value_rows),
    "numeric": Kind(read_table, value_rows),
    "length": Kind(read_texts, value_rows),
    "columns": Kind(read_series, forecast_rows),
}
"""Kinds of data, by a field that only their `Spec` has; that of masks has `channels` as well."""


def kind_of(spec: Any) -> Kind:
    """Return the kind of data."""
    for field, kind in KINDS.items():
        if hasattr(spec, field):
            return kind
    return Kind(read_nothing, value_rows)


def main(argv: list[str] | None = None) -> None:
    """Read the command line, and predict."""
    parser = argparse.ArgumentParser(description="Predict with a run's best weights.")
    add = parser.add_argument
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    add("run", type=Path, help="folder of the run, such as runs/first")
    add("files", type=Path, nargs="*", help="images, folders or tables; default: validation set")
    add("--output", type=Path, help="output folder; default: predictions/ in the run's folder")
    add(
        "--device",
        default=device,
        type=torch.device,
        help="cpu, cuda, mps or xpu",
    )
    add("--batch", type=int, default=64, help="samples per forward pass")
    add(
        "--prompt",
        default="\n",
        type=lambda text: text or "\n",
        help="text to continue",
    )
    add("--tokens", type=int, default=200, help="tokens to add to the prompt")
    add("--temperature", type=float, default=0.8, help="of the sampling; 0: most likely token")
    add("--count", type=int, default=64, help="images to sample")
    add("--seed", type=int, default=0, help="seed of the sampling")
    with one_line():
        predict(parser.parse_args(argv))


if __name__ == "__main__":
    main()
