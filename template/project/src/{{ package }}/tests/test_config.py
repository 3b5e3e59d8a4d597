"""Bad values end the real program with one line that names the key and the way out."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ..config import Config, as_dict, from_dict
from ..train import main
from .conftest import SMALL

BAD = [
    (["--optim.lr=-1"], "optim.lr is -1.0: it must be above 0"),
    (["--optim.lr=.nan"], "optim.lr is nan"),
    (["--optim.lr=fast"], "optim.lr: Expected a float. Got value: fast"),
    (["--optim.lrr=1"], "optim.lrr"),
    (["--optim=3"], "optim"),
    (["--nonsense=1"], "nonsense"),
    (["--train.steps=0"], "train.steps is 0"),
    (["--train.epochs=-2"], "train.epochs is -2"),
    (["--train.micro_batch=0"], "train.micro_batch is 0"),
    (["--train.micro_batch=2.5"], "train.micro_batch"),
    (["--train.micro_batch=100000000"], "larger than the"),
    (["--train.accumulate=0"], "train.accumulate is 0"),
    (["--loader.workers=many"], "loader.workers"),
    (["--loader.workers=-1"], "loader.workers is -1"),
    (["--optim.clip=0"], "optim.clip is 0"),
    (["--optim.pct_start=1"], "optim.pct_start is 1"),
    (["--optim.beta2=1"], "optim.beta2 is 1"),
    (["--speed.precision=fp12"], "speed.precision"),
    (["--speed.precision=tf32"], "speed.precision is tf32"),
    (["--run.name=a/b"], "run.name is 'a/b'"),
    (["--run.name=.."], "run.name is '..'"),
    (["--run.resume=auto"], "run.name is None: it must be given"),
    (["--run.resume=nowhere"], "has no good checkpoint"),
    (["--run.seed=-1"], "run.seed is -1"),
    (["--log.every=0"], "log.every is 0"),
    (["--checkpoint.keep=0"], "checkpoint.keep is 0"),
    (["--config=no-such-file.yaml"], "no-such-file.yaml"),
    (["--data.path=/no/such/place"], "data.path=/no/such/place"),
    (["--data.val_fraction=1"], "data.val_fraction is 1"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[" ".join(options) for options, _ in BAD])
def test_bad_value_is_one_line(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*SMALL, f"--run.dir={tmp_path}/runs", *options])
    printed = capsys.readouterr().err or f"{stop.value}\n"
    assert stop.value.code not in (0, None)
    assert message in printed
    assert printed.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_bad_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, message in (("optim: {lrr: 1}", "lrr"), ("optim: [", "parsing"), ("- 1", ""), ("\x00", "")):
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(SystemExit):
            main([f"--config={tmp_path}/bad.yaml"])
        printed = capsys.readouterr().err
        assert message in printed
        assert printed.count("\n") == 1


def test_every_value_has_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--optim.lr LR Peak learning rate" in text
    assert "--train.micro_batch MICRO_BATCH Samples in one forward pass" in text


def test_config_survives_a_manifest(config: Callable[..., Config]) -> None:
    cfg = config("--run.name=x", "--optim.clip=null")
    assert from_dict(as_dict(cfg)) == cfg
