"""Language modeling tools: evaluate, predict and export.

Delete this file together with the example's tools/task.py: nothing else needs it.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from sklearn.metrics import accuracy_score, log_loss, top_k_accuracy_score

from .. import data
from ..config import Config
from ..distributed import World
from ..tools import evaluate, export, predict, task, text_generation
from ..tools.trained_model import open_trained
from ..train import train

CPU = torch.device("cpu")


@pytest.fixture
def run(config: Callable[..., Config], world: World, tmp_path: Path) -> Callable[..., Path]:
    """Train a few steps on a short text, and return the folder of the run."""

    def make(*options: str) -> Path:
        (tmp_path / "own.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 100)
        own = [f"--data.path={tmp_path}/own.txt", "--data.context=32", f"--data.cache_dir={tmp_path}/cache"]
        train(config(*own, "--data.val_fraction=0.2", "--run.name=a", *options), world)
        return tmp_path / "a"

    return make


def word_tokenizer(file: Path) -> str:
    """A tokenizer with one token per word of that text, which decodes with spaces between words."""
    known = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "rare"]
    numbers = {word: number for number, word in enumerate(known)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, "rare"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.save(str(file))
    return str(file)


def test_metrics_equal_those_of_scikit_learn(run: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = run()
    evaluate.main([str(folder), "--device=cpu"])
    trained = open_trained(folder, CPU)
    found = json.loads((trained.checkpoint / "evaluation.json").read_text())
    assert (trained.checkpoint / "evaluation.png").read_bytes().startswith(b"\x89PNG")
    samples = data.load(trained.cfg.data)
    batch = samples.val.__getitems__(list(range(len(samples.val))))
    inputs, targets = trained.prepare(batch, False, torch.default_generator)
    with torch.no_grad():
        logits = trained.net.predict(inputs).double().flatten(0, 1)
    labels = list(range(256))
    nats = log_loss(targets.flatten(), logits.softmax(1), labels=labels)
    assert found["perplexity"] == pytest.approx(math.exp(nats), rel=1e-4)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2), rel=1e-4)
    assert found["accuracy"] == pytest.approx(accuracy_score(targets.flatten(), logits.argmax(1)))
    assert found["accuracy_top5"] == pytest.approx(top_k_accuracy_score(targets.flatten(), logits, k=5, labels=labels))
    assert f"perplexity      {found['perplexity']:.6g}\n" in capsys.readouterr().out


def test_stride_counts_the_last_tokens_of_overlapping_windows(run: Callable[..., Path], world: World) -> None:
    folder = run("--train.steps=60")
    trained = open_trained(folder, CPU)
    tokens = data.load(trained.cfg.data).val.tokens.long()
    bits = []
    for start in range(0, len(tokens) - 32, 8):
        with torch.no_grad():
            logs = trained.net.predict(tokens[None, start : start + 32])[0, -8:].log_softmax(-1)
        bits += [-float(logs[step, tokens[start + 25 + step]]) / math.log(2) for step in range(8)]
    found = evaluate.measure(trained, world, stride=8).details
    assert found["stride"] == 8
    assert found["bits_per_byte"] == pytest.approx(sum(bits) / len(bits), rel=1e-5)
    without = evaluate.measure(trained, world).metrics["bits_per_byte"]
    assert found["bits_per_byte"] < without, "the tokens have more context"
    with pytest.raises(SystemExit, match="--stride 33: it must be from 1 to data.context=32"):
        evaluate.main([str(folder), "--device=cpu", "--stride=33"])


def test_continuation_depends_only_on_prompt_and_seed(
    run: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = run()
    (tmp_path / "prompt.txt").write_text("the quick brown fox jumps over the lazy dog\nthe quick")

    def continued(*options: str) -> str:
        capsys.readouterr()
        predict.main([str(folder), *options, "--device=cpu", "--tokens=12"])
        return capsys.readouterr().out

    prompt = str(tmp_path / "prompt.txt")
    first = continued(prompt, "--seed=1", "--temperature=3")
    assert first.startswith((tmp_path / "prompt.txt").read_text())
    assert first == continued(prompt, "--seed=1", "--temperature=3")
    assert first != continued(prompt, "--seed=2", "--temperature=3")
    greedy = continued(prompt, "--temperature=0")
    assert greedy == continued(prompt, "--top-k=1", "--seed=3")
    both = continued(prompt, "--prompt=the lazy", "--temperature=0")
    assert both.index("==> --prompt <==\nthe lazy") < both.index(f"==> {prompt} <==\nthe quick")
    continued(prompt, "--temperature=0", f"--output={tmp_path}/a.json")
    (written,) = json.loads((tmp_path / "a.json").read_text())
    assert written["prompt"] + written["continuation"] + "\n" == greedy
    continued(prompt, "--temperature=0", f"--output={tmp_path}/a.txt")
    assert (tmp_path / "a.txt").read_text() == greedy
    assert not list(tmp_path.glob(".partial*"))


def test_tokenizer_file_can_move(run: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = run(f"--data.tokenizer={word_tokenizer(tmp_path / 'words.json')}")
    (tmp_path / "words.json").rename(tmp_path / "moved.json")
    with pytest.raises(SystemExit, match=r"words.json does not exist"):
        predict.main([str(folder), "--device=cpu", "--prompt=the quick"])
    moved = f"--tokenizer={tmp_path}/moved.json"
    capsys.readouterr()
    predict.main([str(folder), "--device=cpu", "--prompt=the quick", moved, "--tokens=5", "--temperature=0"])
    added = capsys.readouterr().out.removeprefix("the quick").split()
    assert len(added) == 5
    assert set(added) <= set("the quick brown fox jumps over lazy dog rare".split())  # noqa: SIM905
    with pytest.raises(SystemExit, match="bytes has 256 tokens, but the model 9"):
        predict.main([str(folder), "--device=cpu", "--prompt=the quick", "--tokenizer=bytes"])


@pytest.mark.parametrize(("options", "kept"), [((1.0, 2), {1, 3}), ((0.0, 0), {3}), ((1.0, 0), {0, 1, 2, 3})])
def test_tokens_are_sampled_from_the_softmax(options: tuple[float, int], kept: set[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.tensor([0.0, 1.0, 0.5, 2.0])
    samples = [text_generation.sample(logits, *options, generator) for _ in range(2000)]
    assert set(samples) == kept
    expected = torch.tensor([logits[token] for token in sorted(kept)]).softmax(0)
    frequencies = [samples.count(token) / 2000 for token in sorted(kept)]
    assert frequencies == pytest.approx(expected.tolist(), abs=0.05)


def test_predict_rejects_invalid_input(
    run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = run("--train.steps=1", "--train.eval_every=1")
    monkeypatch.chdir(tmp_path)
    cases: dict[str, list[str]] = {
        "no prompt: give --prompt": [],
        "--tokens 0: it must be 1 or above": ["--prompt=a", "--tokens=0"],
        "--temperature -1.0: it must be 0 or above": ["--prompt=a", "--temperature=-1"],
        "--temperature nan: it must be 0 or above": ["--prompt=a", "--temperature=nan"],
        "must end with .txt or .json": ["--prompt=a", "--output=a.pdf"],
        "cannot write nowhere/a.txt": ["--prompt=a", "--tokens=1", "--output=nowhere/a.txt"],
        "cannot read nowhere.txt": ["nowhere.txt"],
    }
    for message, options in cases.items():
        with pytest.raises(SystemExit, match=message):
            predict.main([str(folder), *options, "--device=cpu"])


@pytest.mark.parametrize("kind", ["torch", "onnx"])
def test_exported_model_equals_the_original(run: Callable[..., Path], kind: str, tmp_path: Path) -> None:
    folder = run("--train.steps=1", "--train.eval_every=1")
    export.main([str(folder), f"--format={kind}", f"--output={tmp_path}/exported"])
    trained = open_trained(folder, CPU, "fp32")
    module, (tokens,) = task.export_module(trained)
    assert (tokens.dtype, tokens.shape) == (torch.int64, (2, 32))
    more = torch.cat([tokens, tokens, tokens])
    outputs = loaded(kind, tmp_path / "exported")(more)
    torch.testing.assert_close(outputs, module(more).detach(), rtol=1e-3, atol=1e-4)


def loaded(kind: str, file: Path) -> Callable[..., torch.Tensor]:
    """Load an exported model."""
    if kind == "torch":
        program: Any = torch.export.load(file).module()
        return lambda tokens: program(tokens).detach()
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (name,) = [entry.name for entry in session.get_inputs()]
    return lambda tokens: torch.from_numpy(session.run(None, {name: tokens.numpy()})[0])
