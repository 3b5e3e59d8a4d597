"""Predictions or samples of a trained run: a CSV file, PNG files or text, depending on its model and its data.

python -m <package>.components.predict runs/first                     # predictions of its
validation set, or samples
python -m <package>.components.predict runs/first new.csv more.csv    # of your own files
python -m <package>.components.predict runs/first --prompt "import "  # text from a language model
"""

import argparse
import csv
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import data
from ..contracts import sample_method
from ..errors import UserError, one_line
from ..evaluate import load_run
from ..loader import load_batch


@torch.no_grad()
def predict(options: argparse.Namespace) -> None:
    """Write the predictions of a run's best weights, in fp32."""
    cfg, net, dataset, spec = load_run(options.run, options.device)
    model: Any = net.eval()
    writes_text = getattr(spec, "vocabulary", 0) and not hasattr(spec, "classes")
    if options.files and (writes_text or sample_method(model)):
        raise UserError(
            f"{type(net).__name__} reads no files, but {options.files[0]} is given: leave it out"
        )
    (folder := options.output or options.run / "predictions").mkdir(parents=True, exist_ok=True)
    if writes_text:
        print(options.prompt + generate(model, spec, cfg.data, options))
    elif sample := sample_method(model):
        generator = torch.Generator(next(net.parameters()).device).manual_seed(options.seed)
        save_grid(sample(options.count, generator), folder / "samples.png")
    else:
        names = [f"{number:05}" for number in range(len(dataset))]
        if options.files:
            try:
                names, dataset = open_own(options.files, spec, cfg.data)
                if not names:
                    raise ValueError("no samples")
            except (OSError, ValueError, KeyError) as error:
                why = f"no column {error}" if isinstance(error, KeyError) else error
                raise UserError(
                    f"cannot read {', '.join(map(str, options.files))}: {why}"
                ) from error
        found = zip(
            names,
            predictions(model, dataset, data.Prepare(spec, cfg.data), options.batch),
            strict=True,
        )
        table = (
            row
            for name, pair in found
            for row in rows(name, *pair, spec, bool(options.files), folder)
        )
        with (folder / "predictions.csv").open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, first := next(table))
            writer.writeheader()
            writer.writerows([first, *table])
        print(f"wrote {stream.name}")


def generate(model: Any, spec: Any, cfg: Any, options: argparse.Namespace) -> str:
    """Continue the prompt, one token at a time; the oldest tokens leave a full context."""
    name, device = getattr(cfg, "tokenizer", "bytes"), next(model.parameters()).device
    known = None if name == "bytes" else import_module("tokenizers").Tokenizer.from_file(name)
    tokens = (
        known.encode(options.prompt, add_special_tokens=False).ids
        if known
        else list(options.prompt.encode())
    )
    first, generator = len(tokens), torch.Generator().manual_seed(options.seed)
    for _ in range(options.tokens):
        logits = (
            model.predict(torch.tensor([tokens[-spec.context :]], device=device))[0, -1]
            .float()
            .cpu()
        )
        likely = (logits / max(options.temperature, 1e-6)).softmax(0)  # 0: the most likely token
        tokens.append(int(torch.multinomial(likely, 1, generator=generator)))
    return (
        str(known.decode(tokens[first:]))
        if known
        else bytes(tokens[first:]).decode(errors="replace")
    )


def save_grid(images: Tensor, file: Path) -> None:
    """Write images (n, channels, height, width), with values from 0 to 1, as one PNG; small ones are enlarged."""
    side, factor = int((len(images) - 1) ** 0.5) + 1, max(1, 64 // images.shape[-1])
    large = F.interpolate(images.float().cpu(), scale_factor=factor)
    tiles = F.pad(large, (1, 1, 1, 1, 0, 0, 0, -len(images) % side)).unflatten(0, (-1, side))
    # rows, height, columns, width, channels
    pixels = tiles.permute(0, 3, 1, 4, 2).flatten(0, 1).flatten(1, 2)
    import_module("PIL.Image").fromarray((255 * pixels).round().byte().squeeze(2).numpy()).save(
        file
    )
    print(f"wrote {file}")


def predictions(
    model: Any, dataset: Any, prepare: Any, size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the output and the target of each sample, from batches of this size."""
    taken, known = signature(model.predict).parameters, signature(model.forward).parameters
    device = next(model.parameters()).device
    for begin in range(0, len(dataset), size):
        loaded = load_batch(dataset, [*range(len(dataset))[begin : begin + size]])
        batch = prepare(loaded, False, torch.default_generator)
        named = batch if isinstance(batch, dict) else dict(zip(known, batch, strict=False))
        if not taken.keys() <= named.keys():
            raise UserError(
                f"`predict` of {type(model).__name__} must take inputs of `forward`, by the same names"
            )
        outputs = (
            model.predict(**{name: named.pop(name).to(device) for name in taken}).float().cpu()
        )
        (targets,) = named.values()
        yield from zip(outputs, targets.cpu(), strict=True)


def rows(
    name: str, output: Tensor, target: Tensor, spec: Any, own: bool, folder: Path
) -> list[dict[str, Any]]:
    """Return the row of a sample, or the rows of a forecast."""
    row: dict[str, Any] = {"sample": name}
    if (classes := getattr(spec, "classes", ())) and output.ndim == 3:
        return [row | {"mask": save_mask(name, output.argmax(0), classes, own, folder)}]
    if classes and output.ndim == 1:
        row |= {"predicted": classes[int(output.argmax())]} | (
            {} if own else {"label": classes[int(target)]}
        )
        return [
            row
            | {
                f"p({one})": f"{p:.6g}"
                for one, p in zip(classes, output.softmax(0).tolist(), strict=True)
            }
        ]
    if output.ndim == 0:
        row["predicted"], std, mean = (
            output.item(),
            getattr(spec, "target_std", 1),
            getattr(spec, "target_mean", 0),
        )
        return [row if own else row | {"target": target.item() * std + mean}]
    if (columns := getattr(spec, "columns", ())) and output.ndim == 2:
        parts = [output] if own else [output, target]
        heads = [*columns, *(f"{column} (true)" for column in columns)]
        values = torch.cat(
            [part * torch.tensor(spec.std) + torch.tensor(spec.mean) for part in parts], 1
        ).tolist()
        return [
            row | {"step": step} | dict(zip(heads, found, strict=False))
            for step, found in enumerate(values, 1)
        ]
    raise UserError(
        f"`predict` returns {tuple(output.shape)} per sample: add a row for it in components/predict.py"
    )


def save_mask(name: str, mask: Tensor, classes: tuple[str, ...], own: bool, folder: Path) -> str:
    """Write a mask with the values of the training masks; one of your own images has the size of that."""
    pil, ops = import_module("PIL.Image"), import_module("PIL.ImageOps")
    values = torch.tensor(
        [int(one) if one.isdigit() else number for number, one in enumerate(classes)]
    )
    image = pil.fromarray(values[mask].byte().numpy())
    # 0 is black
    image.putpalette(bytes(value * step % 256 for value in range(256) for step in (67, 151, 211)))
    if own:
        with pil.open(name) as opened:
            image = image.resize(ops.exif_transpose(opened).size, pil.Resampling.NEAREST)
    image.save(file := folder / f"{name.strip('/').replace('/', '_')}.png")
    return file.name


def open_own(files: list[Path], spec: Any, cfg: Any) -> tuple[list[str], list[Any]]:
    """Return the names and the samples of your files; statistics, categories and tokens are those of the training."""
    if hasattr(spec, "channels"):
        known = import_module("PIL.Image").registered_extensions()
        inner = [
            path
            for file in files
            for path in (sorted(file.rglob("*")) if file.is_dir() else [file])
        ]
        images = [path for path in inner if path in files or path.suffix.lower() in known]
        return list(map(str, images)), [(_image(file, spec), 0) for file in images]
    pd = import_module("pandas")
    comma: dict[str, Any] = (
        {"sep": ";", "decimal": ","} if getattr(cfg, "decimal", "point") == "comma" else {}
    )
    # as data.py: separators may end the rows
    comma |= {"index_col": False} if hasattr(spec, "numeric") else {}
    options = (
        {"dtype": str, "keep_default_na": False}
        if hasattr(spec, "tokenizer")
        else {"na_values": "?", **comma}
    )
    frames = [
        pd.read_parquet(it) if it.suffix.lower() == ".parquet" else pd.read_csv(it, **options)
        for it in files
    ]
    if columns := list(getattr(spec, "columns", ())):
        ends = [
            frame[columns].astype(float).ffill().dropna().tail(spec.context) for frame in frames
        ]
        if min(map(len, ends)) < spec.context:
            raise UserError(
                f"the model forecasts from {spec.context} rows of a series: give files with more"
            )
        values = [
            (torch.tensor(end.to_numpy()) - torch.tensor(spec.mean)) / torch.tensor(spec.std)
            for end in ends
        ]
        return list(map(str, files)), [
            (F.pad(value.float(), (0, 0, 0, spec.horizon)),) for value in values
        ]
    frame = pd.concat(frames, ignore_index=True)
    if hasattr(spec, "tokenizer"):
        texts = list(frame[cfg.text].astype(str))
        encoded = import_module("tokenizers").Tokenizer.from_str(spec.tokenizer).encode_batch(texts)
        return texts, [(torch.tensor(text.ids), sum(text.attention_mask), 0) for text in encoded]
    if hasattr(spec, "numeric"):
        return [*map(str, range(len(frame)))], list(zip(*_table(frame, spec, cfg), strict=True))
    raise UserError("components/predict.py reads no files for this data.py: add them to `open_own`")


def _image(file: Path, spec: Any) -> Tensor:
    """Read an image as data.py does: (channels, size, size), uint8."""
    pil, size = import_module("PIL.Image"), (spec.size, spec.size)
    with pil.open(file) as opened:
        image = (
            import_module("PIL.ImageOps")
            .exif_transpose(opened)
            .convert("RGB" if spec.channels == 3 else "L")
        )
    pixels = bytearray(image.resize(size, pil.Resampling.BILINEAR).tobytes())
    return torch.frombuffer(pixels, dtype=torch.uint8).view(*size, -1).permute(2, 0, 1)


def _table(frame: Any, spec: Any, cfg: Any) -> list[Tensor]:
    convert, index, gap = data.__dict__["convert"], import_module("pandas").Index, " is missing"
    cfg = replace(cfg, categorical=tuple(spec.categories))
    codes, numbers = (
        torch.zeros(len(frame), len(spec.categories)).long(),
        torch.zeros(len(frame), len(spec.numeric)),
    )
    for place, (name, known) in enumerate(spec.categories.items()):
        codes[:, place] = torch.tensor(index(known).get_indexer(convert(frame[name], cfg)) + 1)
    for place, name in enumerate(spec.numeric):
        source = name.removesuffix(gap) if name.removesuffix(gap) in spec.numeric else name
        column = convert(frame[source], cfg)
        numbers[:, place] = torch.tensor(
            (column if name == source else column.isna()).to_numpy("float32")
        )
    return [numbers, codes, torch.zeros(len(frame))]


def main(argv: list[str] | None = None) -> None:
    """Read the command line, and predict."""
    parser = argparse.ArgumentParser(description="Predict with a run's best weights.")
    parser.add_argument("run", type=Path, help="folder of the run, such as runs/first")
    parser.add_argument(
        "files", type=Path, nargs="*", help="images, folders or tables; default: the validation set"
    )
    parser.add_argument(
        "--output", type=Path, help="output folder; default: predictions/ in the run's folder"
    )
    found = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    parser.add_argument("--device", default=found, type=torch.device, help="cpu, cuda, mps or xpu")
    parser.add_argument("--batch", type=int, default=64, help="samples per forward pass")
    parser.add_argument(
        "--prompt", default="\n", type=lambda text: text or "\n", help="text to continue"
    )
    parser.add_argument("--tokens", type=int, default=200, help="tokens to add to the prompt")
    parser.add_argument(
        "--temperature", type=float, default=0.8, help="of the sampling; 0: the most likely token"
    )
    parser.add_argument("--count", type=int, default=64, help="images to sample")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling")
    with one_line():
        predict(parser.parse_args(argv))


if __name__ == "__main__":
    main()
