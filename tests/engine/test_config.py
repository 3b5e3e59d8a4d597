"""The command line: each wrong value is one line that names the key; a saved config is read again."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from engine import MakePackage
from matrix import MODELS

WRONG: list[tuple[list[str], str]] = [
    (["--train.batch_size=0"], r"train.batch_size is 0: it must be in \[1, inf\)"),
    (["--optim.lr=-1"], "optim.lr"),
    (["--optim.lr=nan"], "optim.lr"),
    (["--optim.lr=fast"], "optim.lr"),
    (["--optim.beta1=1"], "optim.beta1"),
    (["--train.epochs=inf"], "train.epochs"),
    (["--speed.precision=fp8"], "speed.precision"),
    (["--train.unknown=1"], "unknown"),
    (["--config=missing.yaml"], "missing.yaml"),
    (["--run.seed=1.5"], "run.seed"),
    (["--train.steps"], "train.steps"),
]


@pytest.mark.parametrize(
    ("options", "message"), WRONG, ids=lambda value: value[0] if isinstance(value, list) else ""
)
def test_wrong_option_is_one_line_that_names_it(
    tiny: MakePackage, tmp_path: Path, options: list[str], message: str
) -> None:
    p = tiny()
    with pytest.raises(p.errors.UserError, match=message) as caught:
        p.train_here(tmp_path, "--train.epochs=1", *options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("model", MODELS)
def test_size_sets_what_is_at_its_default(package: MakePackage, tmp_path: Path, model: str) -> None:
    """On the command line, in a file, and in a saved config."""
    p, file = package(model), tmp_path / "size.yaml"
    for size in p.model.SIZES:
        file.write_text(f"model: {{size: {size}}}")
        expected = p.model.ModelConfig(size=size)
        for options in ([f"--model.size={size}"], [f"--config={file}"]):
            cfg = p.config.parse(p.components.Config, options)
            assert cfg.model == expected
            assert (
                p.config.parse(
                    p.components.Config,
                    saved=json.loads(json.dumps(dataclasses.asdict(cfg), default=str)),
                )
                == cfg
            )


def test_explicit_values_win_over_those_of_the_size(tmp_path: Path, package: MakePackage) -> None:
    """Also where they are the default's, and wherever they are given."""
    p, file = package("mlp"), tmp_path / "size.yaml"
    file.write_text("model: {size: wide, width: 64}")
    explicit = p.model.ModelConfig(size="wide", width=64)
    assert (explicit.width, explicit.depth) == (64, 4)
    for options in (
        ["--model.size=wide", "--model.width=64"],
        ["--model.width=64", "--model.size=wide"],
        [f"--config={file}"],
        ["--model.width=64", f"--config={file}", "--model.size=wide"],
    ):
        assert p.config.parse(p.components.Config, options).model == explicit


def test_help_and_printed_config_show_the_values_of_the_size(
    package: MakePackage, capsys: pytest.CaptureFixture[str]
) -> None:
    p = package("mlp")
    for option, shown in (("--help", "default: 512"), ("--print_config", "width: 512")):
        with pytest.raises(SystemExit):
            p.config.parse(p.components.Config, ["--model.size=wide", option])
        assert shown in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "text", ["train: [", "train: 1", "nothing: {a: 1}", "train: {steps: x}", "\x00", "- a"]
)
def test_wrong_file_is_one_line_and_exit_status_1(
    tiny: MakePackage, tmp_path: Path, text: str
) -> None:
    p, file = tiny(), tmp_path / "wrong.yaml"
    file.write_text(text)
    with pytest.raises(p.errors.UserError) as caught:
        p.options(f"--config={file}")
    assert "\n" not in str(caught.value)


def test_every_number_has_a_range_and_every_field_a_docstring(tiny: MakePackage) -> None:
    p = tiny("ema", "oom", "fsdp")
    for section in dataclasses.fields(p.components.Config):
        if section.name in ("data", "model"):
            continue
        for field in dataclasses.fields(section.type):  # type: ignore[arg-type]
            numbers = "int" in str(field.type) or "float" in str(field.type)
            assert not numbers or "interval" in field.metadata, f"{section.name}.{field.name}"


@pytest.mark.parametrize("model", ["mlp", "gpt"])
def test_help_shows_every_field_with_its_docstring(
    package: MakePackage, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    p = package(model)
    with pytest.raises(SystemExit) as caught:
        p.options("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert caught.value.code == 0
    for section in dataclasses.fields(p.components.Config):
        for field in dataclasses.fields(section.type):  # type: ignore[arg-type]
            assert f"--{section.name}.{field.name}" in shown
    assert "Peak learning rate" in shown
    assert "known_default" not in shown


def test_saved_config_is_read_again(package: MakePackage) -> None:
    p = package("mlp", "ema")
    cfg = p.options(
        "--ema.decay=0.5", "--run.seed=7", "--optim.max_grad_norm=null", "--train.steps=3"
    )
    record: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(cfg), default=str))
    assert p.config.parse(p.components.Config, saved=record) == cfg
    record["removed"] = {"enabled": True}
    record["train"]["patience"] = 3
    assert p.config.parse(p.components.Config, saved=record) == cfg


def test_later_options_override_earlier_ones_and_files(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny()
    (tmp_path / "more.yaml").write_text("train: {batch_size: 5, steps: 4}\n")
    cfg = p.options("--train.batch_size=3", f"--config={tmp_path}/more.yaml", "--train.steps=2")
    assert (cfg.train.batch_size, cfg.train.steps) == (5, 2)
