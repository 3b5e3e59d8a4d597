"""The command line: each wrong value is one line that names the key.

A saved config is read again.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from engine import MakePackage, Package
from matrix import ENGINE_MODEL, EVERY, MODELS, ONE_PER_KIND, tiers

ROOT = Path(__file__).parents[2]
WRONG: list[tuple[list[str], str]] = [
    (["--train.batch_size=0"], r"train.batch_size is 0: it must be in \[1, inf\)"),
    (["--optim.lr=-1"], "optim.lr"),
    (["--optim.lr=nan"], "optim.lr"),
    (["--optim.lr=fast"], "^optim.lr is fast: it must be a number$"),
    (["--train.steps=x"], "^train.steps is x: it must be a whole number or null$"),
    (["--speed.channels_last=x"], "^speed.channels_last is x: it must be true, false or auto$"),
    (["--train.monitor_mode=up"], "^train.monitor_mode is up: it must be min, max or null$"),
    (["--optim.beta1=1"], "optim.beta1"),
    (["--train.epochs=inf"], "train.epochs"),
    (["--speed.precision=fp8"], "speed.precision"),
    (["--train.unknown=1"], "unknown"),
    (["--config=missing.yaml"], "missing.yaml"),
    (["--run.seed=1.5"], "^run.seed is 1.5: it must be a whole number$"),
    (["--train.steps"], "train.steps"),
    (["--run.name="], "run.name is : it must be the name of a folder in run.dir"),
    (["--run.name=."], "run.name"),
    (["--run.name=#3"], "^run.name is #3, which YAML reads as null: give null, or another name or"),
    (["--run.name=&a"], "^run.name is &a, which YAML reads as null"),
    (["--run.name=~"], "^run.name is ~, which YAML reads as null"),
    (["--run.name=Null"], "^run.name is Null, which YAML reads as null"),
    (["--run.name=NULL"], "^run.name is NULL, which YAML reads as null"),
    (["--run.name=?"], r"^run.name is \?, which YAML reads as null"),
    (["--print_config=x"], 'Invalid option "x" for --print_config'),
    (["--run.name=.."], "run.name"),
    (["--run.name=a/../../b"], "run.name"),
    (["--run.name=/tmp/b"], "run.name"),
    (["--train.monitor=accuracy"], "train.monitor is accuracy: set train.monitor_mode, min or max"),
    (["--train.monitor=f1", "--train.monitor_mode=null"], "train.monitor is f1: set"),
]


@pytest.mark.parametrize(
    ("options", "message"), WRONG, ids=lambda value: value[0] if isinstance(value, list) else ""
)
def test_wrong_option_is_one_line_that_names_it(
    p: Package, tmp_path: Path, options: list[str], message: str
) -> None:
    with pytest.raises(p.errors.UserError, match=message) as caught:
        p.train_here(tmp_path, "--train.epochs=1", *options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("model", MODELS)
def test_size_sets_what_is_at_its_default(package: MakePackage, tmp_path: Path, model: str) -> None:
    """On the command line, in a file, and in a saved config."""
    p = package(model)
    file = tmp_path / "size.yaml"
    for size in p.model.SIZES:
        file.write_text(f"model: {{size: {size}}}")
        expected = p.model.ModelConfig(size=size)
        for options in ([f"--model.size={size}"], [f"--config={file}"]):
            cfg = p.config.parse(p.components.Config, options)
            assert cfg.model == expected
            saved = json.loads(json.dumps(dataclasses.asdict(cfg), default=str))
            assert p.config_files.from_saved(p.components.Config, saved) == cfg


def test_explicit_values_win_over_those_of_the_size(tmp_path: Path, package: MakePackage) -> None:
    """Also where they are the default's, and wherever they are given."""
    p = package("mlp")
    file = tmp_path / "size.yaml"
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
    "text", ["train: [", "train: 1", "nothing: {a: 1}", "optim: {eps: x}", "\x00", "- a"]
)
def test_wrong_file_is_one_line_and_exit_status_1(p: Package, tmp_path: Path, text: str) -> None:
    file = tmp_path / "wrong.yaml"
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
            name = f"--{section.name}.{field.name}"
            about = shown.rpartition(f" {name} ")[2].partition(" --")[0]
            assert about
            interval = field.metadata.get("interval")
            assert interval is None or f", in {interval}, default: " in about, name
    assert "Peak learning rate" in shown
    assert "known_default" not in shown


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--optim.lrate=1", "the keys of optim are lr, .* Did you mean --optim.lr\\?"),
        ("--lr=1", "the sections are run, .* Did you mean --optim.lr\\?"),
        ("--emma.decay=1", "the sections are run, .*, and those of added components"),
    ],
)
def test_unknown_option_names_what_exists(p: Package, option: str, hint: str) -> None:
    with pytest.raises(p.errors.UserError, match=f"{option[:-2]}; {hint}"):
        p.options(option)


def test_saved_config_is_read_again(package: MakePackage) -> None:
    p = package("mlp", "ema")
    cfg = p.options(
        "--ema.decay=0.5", "--run.seed=7", "--optim.max_grad_norm=null", "--train.steps=3"
    )
    record: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(cfg), default=str))
    assert p.config_files.from_saved(p.components.Config, record) == cfg
    record["removed"] = {"enabled": True}
    record["train"]["patience"] = 3
    assert p.config_files.from_saved(p.components.Config, record) == cfg


def test_command_line_overrides_files_wherever_they_stand(p: Package, tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text("train: {batch_size: 5, steps: 4}\n")
    cfg = p.options("--train.batch_size=3", f"--config={tmp_path}/more.yaml", "--train.steps=2")
    assert (cfg.train.batch_size, cfg.train.steps) == (3, 2)


OVERRIDING = [
    ("train", "steps", 7, "epochs", 3.0),
    ("train", "global_batch_size", 16, "gradient_accumulation_steps", 2),
    ("optim", "cycle_momentum", True, "beta1", 0.5),
    ("data", "val_path", "val.csv", "val_fraction", 0.3),
    ("data", "test_path", "test.csv", "test_fraction", 0.3),
]
"""A key that overrides another one of its section, with a value of each."""


@pytest.mark.parametrize(("section", "strong", "value", "weak", "given"), OVERRIDING)
def test_key_that_is_given_later_wins_over_one_that_overrides_it(
    package: MakePackage,
    tmp_path: Path,
    section: str,
    strong: str,
    value: Any,
    weak: str,
    given: Any,
) -> None:
    """The command line is later than each file, wherever it stands."""
    p = package("mlp", "optimizers")
    parse = p.config.parse
    off = False if value is True else None
    written = str(value).lower()
    (tmp_path / "strong.yaml").write_text(f"{section}: {{{strong}: {written}}}")
    (tmp_path / "weak.yaml").write_text(f"{section}: {{{weak}: {given}}}")
    (tmp_path / "both.yaml").write_text(f"{section}: {{{weak}: {given}, {strong}: {written}}}")
    files = {name: f"--config={tmp_path}/{name}.yaml" for name in ("strong", "weak", "both")}
    strong_option = f"--{section}.{strong}={written}"
    weak_option = f"--{section}.{weak}"

    def found(*words: str) -> tuple[Any, Any]:
        values = getattr(parse(p.components.Config, list(words)), section)
        chosen = getattr(values, strong)
        return str(chosen) if isinstance(chosen, Path) else chosen, getattr(values, weak)

    assert found(files["strong"], weak_option, str(given)) == (off, given)
    assert found(f"{weak_option}={given}", files["strong"]) == (off, given)
    assert found(f"{weak_option}={given}", strong_option) == (value, given)
    assert found(files["weak"], strong_option) == (value, given)
    assert found(files["strong"], files["weak"]) == (off, given)
    assert found(files["weak"], files["strong"]) == (value, given)
    assert found(files["both"]) == (value, given)
    assert found(f"{weak_option}={given}") == (off, given)


def test_momentum_that_is_given_is_not_cycled(package: MakePackage) -> None:
    p = package("mlp", "optimizers")
    cfg = p.config.parse(p.components.Config, ["--optimizers.momentum=0.8"])
    assert (cfg.optimizers.momentum, cfg.optim.cycle_momentum) == (0.8, False)


def test_every_key_that_overrides_another_one_exists_and_is_off_when_null_or_false(
    package: MakePackage,
) -> None:
    p = package("mlp", "optimizers")
    found = {}
    sections: dict[str, Any] = {it.name: it.type for it in dataclasses.fields(p.components.Config)}
    for section, kind in sections.items():
        for field in dataclasses.fields(kind):
            if field.metadata.get("overridden_by"):
                found[f"{section}.{field.name}"] = field.metadata["overridden_by"]
    for key in found.values():
        section, name = key.split(".")
        default = next(
            it.default for it in dataclasses.fields(sections[section]) if it.name == name
        )
        assert default is None or default is True, key
    tested = {
        f"{section}.{weak}": f"{section}.{strong}" for section, strong, _, weak, _ in OVERRIDING
    }
    assert found == tested | {"optimizers.momentum": "optim.cycle_momentum"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "train: {steps: 1}\nlog: {every: 1}\ntrain: {epochs: 1}\n",
            r"train stands twice in .*c.yaml, in lines 1 and 3: keep one",
        ),
        (
            "train:\n  steps: 1\n  batch_size: 3\n  steps: 2\n",
            r"steps stands twice in .*c.yaml, in lines 2 and 4: keep one",
        ),
        ("train: 1", r"train is 1 in .*c.yaml, but a section has keys"),
        ("- a", r"c.yaml needs sections, such as train"),
        (
            "train: {stpes: 1}",
            r"--train.stpes in .*c.yaml; the keys of train are .* Did you mean --train.steps\?",
        ),
        ("run: {name: {{a}}}", r"c.yaml"),
        ("run:\n  name: a: b", r"c.yaml.*line 2"),
        ("optim: {lr: ''}", r"^optim.lr is empty: it must be a number$"),
        ("train: {batch_size: ''}", r"^train.batch_size is empty: it must be a whole number$"),
        ("optim: {lr: 1:30}", r"optim.lr is 1:30, which YAML reads as a number of seconds: give"),
        ("log: {every: null}", r"log.every needs a value, not null in .*c.yaml"),
        ("log:\n  every:\n", r"log.every needs a value, not null in .*c.yaml"),
    ],
)
def test_wrong_file_is_named_with_the_place(
    package: MakePackage, tmp_path: Path, text: str, message: str
) -> None:
    p = package("mlp", "optimizers")
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(p.errors.UserError, match=message) as caught:
        p.config.parse(p.components.Config, [f"--config={file}"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "# nothing\n", "train:\n", "train: {}\nlog: null\n", "---\n"])
def test_empty_files_and_sections_change_nothing(
    package: MakePackage, tmp_path: Path, text: str
) -> None:
    p = package("mlp", "optimizers")
    file = tmp_path / "c.yaml"
    file.write_text(text)
    assert p.config.parse(p.components.Config, [f"--config={file}"]) == p.components.Config()


@pytest.mark.parametrize(
    ("text", "section", "key", "value"),
    [
        ("speed: {compile: off}", "speed", "compile", "off"),
        ("run: {name: 2024}", "run", "name", "2024"),
        ("run: {name: 2024-01-02}", "run", "name", "2024-01-02"),
        ("run: {name: 1e3}", "run", "name", "1e3"),
        ("run: {name: 'a'}", "run", "name", "a"),
        ("run: {dir: 7}", "run", "dir", Path("7")),
        ("data: {target: Yes}", "data", "target", "Yes"),
        ("data: {ignore: [No, 1, a]}", "data", "ignore", ("No", "1", "a")),
        ("data: {ignore: a}", "data", "ignore", ("a",)),
        ("data:\n  ignore:\n  - id\n", "data", "ignore", ("id",)),
        ("data: {ignore: []}", "data", "ignore", ()),
        ("speed: {channels_last: on}", "speed", "channels_last", True),
        ("optim: {lr: 1e-3}", "optim", "lr", 1e-3),
        ("train: {steps: null}", "train", "steps", None),
        ("x: &rate {lr: 0.5}\n", "optim", "lr", 1e-3),
        ("optim: &one {lr: 0.5}\n", "optim", "lr", 0.5),
    ],
)
def test_values_in_a_file_are_read_as_on_the_command_line(
    package: MakePackage, tmp_path: Path, text: str, section: str, key: str, value: Any
) -> None:
    p = package("mlp", "optimizers")
    file = tmp_path / "c.yaml"
    file.write_text(text)
    if text.startswith("x:"):
        with pytest.raises(p.errors.UserError, match="unrecognized arguments: --x.lr"):
            p.config.parse(p.components.Config, [f"--config={file}"])
        return
    cfg = p.config.parse(p.components.Config, [f"--config={file}"])
    assert getattr(getattr(cfg, section), key) == value


def test_a_list_that_is_given_twice_is_refused(package: MakePackage, tmp_path: Path) -> None:
    """A list replaces that of a file or of before, as in scripts that add options."""
    p = package("mlp", "optimizers")
    (tmp_path / "c.yaml").write_text("data: {ignore: [a]}")
    words = [
        f"--config={tmp_path / 'c.yaml'}",
        "--run.seed=1",
        "--run.seed=2",
        "--data.ignore=b",
    ]
    assert p.config.parse(p.components.Config, words).data.ignore == ("b",)
    message = r"--data.ignore is given twice: give a list, \[b, c\]"
    with pytest.raises(p.errors.UserError, match=message):
        p.config.parse(p.components.Config, [*words, "--data.ignore", "c"])
    whole = p.config.parse(p.components.Config, [*words, "--data.ignore", "[c]"])
    assert whole.data.ignore == ("c",)


def test_list_of_one_needs_no_brackets_on_the_command_line(package: MakePackage) -> None:
    p = package("mlp", "optimizers")
    for word, value in (
        ("a", ("a",)),
        ("[No, b]", ("No", "b")),
        ('["a b"]', ("a b",)),
    ):
        cfg = p.config.parse(p.components.Config, ["--data.ignore", word])
        assert cfg.data.ignore == value
    message = r"^data.ignore is \[a, which is no list of YAML: write it as \[a, b\]$"
    with pytest.raises(p.errors.UserError, match=message):
        p.config.parse(p.components.Config, ["--data.ignore=[a"])


def with_config() -> list[str]:
    """Return the components that have a section of the config, and those that they need."""
    found = {"shards", "tracker"}
    for file in (ROOT / "template/components").glob("*/component.py"):
        name = file.parent.name
        if f"class {Package.class_of(name)}Config(Section)" in file.read_text():
            found.add(name)
    return sorted(found)


def required(section: Any) -> list[str]:
    """Return the keys of a section that must have a value."""
    types = get_type_hints(section)
    names = [field.name for field in dataclasses.fields(section)]
    return [name for name in names if type(None) not in get_args(types[name])]


@pytest.mark.parametrize(
    "model", tiers(ONE_PER_KIND, [it for it in MODELS if it not in ONE_PER_KIND])
)
def test_null_for_a_key_that_needs_a_value_is_one_line(
    package: MakePackage, tmp_path: Path, model: str
) -> None:
    """One key per section, in a file and on the command line; each key where all is tested."""
    p = package(model, *(with_config() if model == ENGINE_MODEL else []))
    config = p.components.Config
    file = tmp_path / "c.yaml"
    seen = 0
    for section in dataclasses.fields(config):
        keys = required(section.type)
        for key in keys:
            name = f"{section.name}.{key}"
            message = rf"^{name} needs a value, not null"
            file.write_text(f"{section.name}: {{{key}: null}}")
            for words in ([f"--{name}=null"], [f"--{name}", "null"], [f"--config={file}"]):
                if EVERY or (key == keys[-1] and model == ENGINE_MODEL):
                    with pytest.raises(p.errors.UserError, match=message):
                        p.config.parse(config, words)
        seen += len(keys)
    assert seen > (110 if model == ENGINE_MODEL else 35)


def test_the_highest_loss_is_never_the_best(p: Package) -> None:
    with pytest.raises(p.errors.UserError, match=r"monitor_mode is max: a lower loss is better"):
        p.options("--train.monitor=loss", "--train.monitor_mode=max")
