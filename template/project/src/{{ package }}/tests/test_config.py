"""A bad value is a one-line error that names the key and a valid value."""

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from .. import config_help, data, model
from ..config import Config, as_dict, from_dict, parse
from ..errors import UserError
from ..model import ModelConfig
from .conftest import SMALL, main, unsupported

BAD = [
    (["--optim.lr=-1"], "optim.lr is -1.0: it must be above 0"),
    (["--optim.lr=.nan"], "optim.lr is nan"),
    (["--optim.lr=fast"], "optim.lr is fast: expected float above 0"),
    (["--optim.lr"], "--optim.lr needs a value, float above 0"),
    (["--optim.lrr=1"], "there is no option --optim.lrr; did you mean optim.lr?"),
    (["--train.lr", "-1"], "there is no option --train.lr; did you mean optim.lr?"),
    (["--optim=3"], "optim is a section: give its options, such as optim.name"),
    (["--nonsense=1"], "there is no option --nonsense; --help lists them"),
    (["--train.steps=0"], "train.steps is 0"),
    (["--train.epochs=-2"], "train.epochs is -2"),
    (["--train.micro_batch=0"], "train.micro_batch is 0"),
    (["--train.micro_batch=2.5"], "train.micro_batch"),
    (["--train.micro_batch=100000000"], "larger than the"),
    (["--train.accumulate=0"], "train.accumulate is 0"),
    (["--loader.workers=many"], "loader.workers is many: expected int from 0 to 256 or auto"),
    (["--loader.workers=-1"], "loader.workers is -1"),
    (["--optim.clip=0"], "optim.clip is 0.0: it must be above 0, or null"),
    (["--optim.clip=.inf"], "optim.clip is inf"),
    (["--optim.clip=null", "--optim.clip_value=0"], "optim.clip_value is 0.0: it must be above 0, or null"),
    (["--optim.anneal_strategy=cosine"], "optim.anneal_strategy"),
    (["--optim.name=adamx"], "lars or novograd; did you mean adam?"),
    (["--optim.schedule=linear"], "optim.schedule"),
    (["--optim.warmup_steps=-1"], "optim.warmup_steps is -1: it must be 0 or above, or null"),
    (["--optim.schedule=cosine", "--optim.warmup_steps=20"], "optim.warmup_steps is 20: the run has only 20 steps"),
    (["--optim.cycle_steps=1"], "optim.cycle_steps is 1"),
    (["--optim.decay_fraction=1.5"], "optim.decay_fraction is 1.5: it must be above 0 to 1"),
    (["--optim.range_low=1", "--optim.range_high=0.1"], "optim.range_low is 1.0: it must be below optim.range_high"),
    (["--optim.final_div_factor=0.5"], "optim.final_div_factor is 0.5: it must be 1 or above"),
    (["--optim.fused=maybe"], "optim.fused"),
    (["--optim.base_batch=0"], "optim.base_batch is 0"),
    (["--optim.weight_decay=-0.1"], "optim.weight_decay is -0.1"),
    (["--train.global_batch=40"], "train.global_batch is 40: it must be a multiple of train.micro_batch=16"),
    (["--train.global_batch=32", "--train.accumulate=4"], "train.accumulate is 4: train.global_batch=32 makes it 2"),
    (["--train.ema=1"], "train.ema is 1.0: it must be above 0 to below 1, or null"),
    (["--train.patience=0"], "train.patience is 0"),
    (["--train.monitor=f1", "--train.monitor_mode=max"], "train.monitor is f1: use one of the model's metrics"),
    (["--train.monitor=accuracy"], "train.monitor is accuracy: train.monitor_mode must be"),
    (["--optim.schedule=range", "--train.steps=29"], "optim.schedule is range: a range test needs at least 30 steps"),
    (["--debug.nan=true", "--speed.precision=fp16"], "debug.nan is true: fp16 overflows regularly"),
    (["--train.monitor_mode=best"], "train.monitor_mode"),
    (["--data.cache=gpu"], "data.cache"),
    (["--dist.strategy=fsdp"], "dist.strategy is fsdp: it shards the model over ranks, and this run has one"),
    (["--dist.strategy=ps"], "dist.strategy"),
    (["--dist.sync_batchnorm=2"], "dist.sync_batchnorm"),
    (["--dist.static_graph=true", "--train.accumulate=2"], "dist.static_graph is true"),
    (
        ["--speed.precision=fp8"],
        "speed.precision is fp8: this run is on cpu, which supports bf16, fp16, fp32; use one of",
    ),
    (["--speed.compile=true"], "speed.compile"),
    (["--speed.compile_mode=fast"], "speed.compile_mode"),
    (["--speed.activation_checkpointing=every:0"], "speed.activation_checkpointing is every:0: it must be none"),
    (["--speed.activation_checkpointing=every"], "speed.activation_checkpointing is every: it must be none"),
    (["--speed.activation_checkpointing=budget:2"], "speed.activation_checkpointing is budget:2: it must be none"),
    (["--speed.activation_checkpointing=budget:.5"], "a memory budget needs torch.compile"),
    (["--speed.activation_checkpointing=blocks:2"], "speed.activation_checkpointing is blocks:2"),
    (["--speed.step_graph=true"], "speed.step_graph is true: it needs CUDA, and this run is on cpu"),
    (["--debug.sync=error"], "debug.sync is error: only CUDA reports synchronizations"),
    (["--debug.nan=true", "--speed.compile=model"], "debug.nan is true: compiled code has no modules"),
    (["--debug.profile=true", "--train.steps=12"], "debug.profile is true: it needs 13 steps, and the run has 12"),
    (["--loader.workers=256"], "loader.workers is 256: the ranks here share"),
    (["--loader.prefetch_factor=0"], "loader.prefetch_factor is 0: it must be from 1 to 64"),
    (["--optim.pct_start=1"], "optim.pct_start is 1"),
    (["--optim.beta2=1"], "optim.beta2 is 1"),
    (["--speed.precision=fp12"], "speed.precision"),
    (["--speed.precision=tf32"], "speed.precision is tf32"),
    (["--run.name=a/b"], "run.name is a/b"),
    (["--run.name=.."], "run.name is .."),
    (["--run.resume=auto"], "run.name is null: run.resume=auto needs it"),
    (["--run.resume=nowhere"], "has no good checkpoint"),
    (["--run.seed=-1"], "run.seed is -1"),
    (["--log.every=0"], "log.every is 0"),
    (["--checkpoint.keep=0"], "checkpoint.keep is 0"),
    (["--config=no-such-file.yaml"], "cannot read the config no-such-file.yaml: No such file or directory"),
    *([(["--data.path=/no/such/place"], "data.path=/no/such/place")] if hasattr(data.DataConfig, "path") else []),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[" ".join(options) for options, _ in BAD])
def test_bad_value_is_a_one_line_error(
    options: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    with pytest.raises(SystemExit) as stop:
        main([*SMALL, f"--run.dir={tmp_path}/runs", *options])
    printed = capsys.readouterr().err or f"{stop.value}\n"
    assert stop.value.code not in (0, None)
    assert (unsupported(options) or message) in printed
    assert printed.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def _wrong() -> list[tuple[str, str]]:
    """Return for every key a word that it refuses, and a number outside its interval if it has one."""
    found = []
    for section in fields(Config):
        for item in fields(type(getattr(Config(), section.name))):
            key = f"{section.name}.{item.name}"
            if item.type not in (str, str | None, tuple[str, ...]) and "Path" not in str(item.type):
                found.append((key, "[nonsense]"))
            interval = item.metadata.get("interval")
            if interval:
                low = float(interval[1:-1].split(",")[0])
                found.append((key, f"{low - 1:.0f}"))
    return found


@pytest.mark.parametrize(("key", "value"), _wrong())
def test_every_key_refuses_wrong_values(key: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((SystemExit, UserError)) as stop:
        parse("test", "", [f"--{key}={value}"])
    printed = capsys.readouterr().err or f"{stop.value}\n"
    assert key in printed
    assert printed.count("\n") == 1


BAD_FILES = [
    ("optim:\n  lr: 1\n  lrr: 1", ":3: there is no option optim.lrr; did you mean optim.lr?"),
    ("optm: {lr: 1}", ":1: there is no option optm; did you mean optim?"),
    ("train: {steps: 3}\noptim:\n  lr: fast", ":3: optim.lr is fast: expected float above 0"),
    ("optim:\n  lr: [1]", ":2: optim.lr is a list or mapping: expected float above 0"),
    ("optim:\n\n  lr: -1", ":3: optim.lr is -1.0: it must be above 0"),
    ("speed:\n  precision: fp8", ":2: speed.precision is fp8: this run is on cpu"),
    ("train:\noptim:\n  lr: 1", ":1: train is a section: give its options, such as train.epochs"),
    ("optim: 3", ":1: optim is a section"),
    ("optim: {lr: 1}\n\tname: sgd", ":2: this is not valid YAML: found character '\\t'"),
    ("- 1", ": it must contain sections with their options"),
    ("", ": it must contain sections with their options"),
    ("\x00", ": this is not a YAML file: unacceptable character"),
    ("optim: {lr: 1}  # caf\xe9", ":1: this is not UTF-8 (unexpected end of data): save the file as UTF-8"),
    ("optim: {lr: 1}\ntrain: {steps: 3}\noptim: {}", ":3: optim is there twice, first in line 1: make them one"),
    ("optim: {lr: 1, lr: 2}", ":1: optim.lr is there twice"),
    ("optim: [1]", ":1: optim is a section"),
    ("train:", ":1: train is a section: give its options, such as train.epochs"),
    ("# nothing", ": it must contain sections with their options"),
    (
        "optim:\n  lr: !new 1",
        ":2: this is not valid YAML: could not determine a constructor for the tag '!new'; remove",
    ),
    ("optim:\n  lr: !!int fast", ": this is not a YAML file: invalid literal for int"),
    ("optim:\n  lr: !!timestamp fast", ": this is not a YAML file: 'NoneType'"),
    ('run:\n  name: "a\\0b"', ":2: run.name is 'a\\x00b': it must not have a null byte"),
    ('run: {name: "a\\nb"}', ":1: run.name is 'a\\nb': it must be the name of a folder, of printable characters"),
    ("optim:\n  lr:", ":2: optim.lr is null: it needs a value"),
    ("optim: {<<: {lr: 1}}\ntrain: {steps: x}", ":2: train.steps is x: expected"),
]


@pytest.mark.parametrize(("text", "message"), BAD_FILES)
def test_bad_config_file_error_names_file_and_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(SystemExit) as stop:
        main([*SMALL, f"--config={file}"])
    printed = capsys.readouterr().err or f"{stop.value}\n"
    assert printed.startswith(f"error: {file}{message}")
    assert printed.count("\n") == 1


def test_words_that_yaml_makes_bools(tmp_path: Path) -> None:
    """`off` is a bool in YAML 1.1: here it is what the option takes, and anything else is as before."""
    file = tmp_path / "words.yaml"
    file.write_text(
        "\ufeffspeed: {compile: off, channels_last: Off, cudnn_benchmark: no}\n"
        "debug:\n  sync: off\n  nan: on\nrun: {name: off}\nlog: {progress: false, mfu: yes}\n"
    )
    cfg = parse("test", "", [f"--config={file}"])
    assert (cfg.speed.compile, cfg.debug.sync, cfg.run.name) == ("off", "off", "off")
    bools = (cfg.speed.channels_last, cfg.speed.cudnn_benchmark, cfg.debug.nan, cfg.log.progress, cfg.log.mfu)
    assert bools == (False, False, True, False, True)


def test_help_is_that_of_the_config() -> None:
    """It is read from the source."""
    found = {option.key: option for option in config_help.options().values()}
    shown: dict[str, object] = {"null": None, "true": True, "false": False, '""': "", "[]": []}
    expected = {}
    for section in fields(Config):
        for item in fields(type(getattr(Config(), section.name))):
            expected[f"{section.name}.{item.name}"] = json.loads(json.dumps(item.default, default=str))
    assert list(found) == list(expected)
    for key, default in expected.items():
        text = found[key].default
        number = isinstance(default, float | int) and text not in shown
        assert shown.get(text, type(default)(text) if number else text) == default, key
        assert found[key].about


@pytest.mark.skipif(not hasattr(ModelConfig(), "width"), reason="the model has no width")
@pytest.mark.parametrize("width", [2**40, 2**62, 2**80])
def test_model_that_does_not_fit_into_memory(width: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*SMALL, f"--run.dir={tmp_path}/runs", f"--model.width={width}"])
    assert str(stop.value).startswith(f"error: model.width is {width}: the model does not fit into memory")
    assert not capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("size", getattr(model, "SIZES", {}))
def test_size_sets_every_dimension(size: object, tmp_path: Path) -> None:
    """On the command line and in a file, also if the recipe sets another size."""
    expected = ModelConfig(size=size)  # type: ignore[call-arg,arg-type,unused-ignore]
    assert parse("test", "", [f"--model.size={size}"]).model == expected
    (tmp_path / "size.yaml").write_text(f"model:\n  size: {size}\n")
    found = parse("test", "", [f"--config={tmp_path}/size.yaml"])
    assert found.model == expected
    assert from_dict(as_dict(found)).model == expected


@pytest.mark.fast
def test_config_round_trip(config: Callable[..., Config]) -> None:
    cfg = config("--run.name=x", "--optim.clip=null")
    assert from_dict(as_dict(cfg)) == cfg
