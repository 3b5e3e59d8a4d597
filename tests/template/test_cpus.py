"""`make test-cpus`: what a setting does to torch, the emulated rounding, the table and the exit status."""

import subprocess
from pathlib import Path

import cpus
import pytest
from cpus import Setting

PROGRAM = """
import torch

torch.manual_seed(0)
linear, convolution = torch.nn.Linear(64, 64), torch.nn.Conv2d(3, 8, 3)
rows, images, tokens = torch.randn(16, 64), torch.randn(16, 3, 8, 8), torch.randn(16, 2, 8, 4)
attention = torch.nn.functional.scaled_dot_product_attention
for call, whole in ((linear, rows), (convolution, images), (lambda it: attention(it, it, it), tokens)):
    of_whole, of_part = call(whole), call(whole[:7])
    torch.testing.assert_close(of_part, of_whole[:7])
    assert torch.equal(of_whole, call(whole))
    print(torch.equal(of_part, of_whole[:7]))
assert torch.arange(1000.0).sum() == 499500
print(linear(rows).double().sum().item())
"""
"""Whether a part of a batch has equal results in three operations, and a sum."""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cpus.make_environment(tmp_path_factory.mktemp("cpus"))


def output(python: Path, program: str, **variables: str) -> list[str]:
    """Run a program with these variables alone, and return its lines."""
    command = [str(python), "-c", program]
    return subprocess.run(
        command, env=variables, capture_output=True, text=True, check=True
    ).stdout.splitlines()


@pytest.mark.test_all
def test_last_digits_depend_on_the_batch_and_are_equal_if_a_program_runs_again(
    python: Path,
) -> None:
    found = [
        output(python, PROGRAM, EMULATED_ROUNDING=machine, OMP_NUM_THREADS="1") for machine in "112"
    ]
    assert found[0] == found[1]
    assert found[0][:3] == ["False"] * 3
    assert found[0][3] != found[2][3], "another machine"


POSSIBLE = [it for it in cpus.SETTINGS if not cpus.reason_not_to_run(it, cpus.flags_of_cpu(), 8)]
RESTRICTED = [it for it in POSSIBLE if "ATEN_CPU_CAPABILITY" in it.variables]
SHOW = "import torch; torch.conv2d(torch.ones(2, 4, 8, 8), torch.ones(4, 4, 3, 3))"
SHOW += "; print('torch', torch.backends.cpu.get_cpu_capability())"


@pytest.mark.parametrize("setting", RESTRICTED, ids=lambda setting: setting.name)
def test_torch_and_onednn_use_the_instructions_of_a_setting(python: Path, setting: Setting) -> None:
    lines = output(python, SHOW, ONEDNN_VERBOSE="1", **setting.variables)
    (onednn,) = [line.partition("isa:")[2] for line in lines if ",cpu,isa:" in line]
    assert lines[-1] == f"torch {setting.variables['ATEN_CPU_CAPABILITY'].upper()}"
    known = {"SSE41": "SSE4.1", "AVX2": "AVX2"}
    assert onednn.split()[1].startswith(
        known.get(setting.variables["ONEDNN_MAX_CPU_ISA"], "AVX-512")
    )


def test_setting_that_the_machine_lacks_is_named() -> None:
    by_name = {setting.name: setting for setting in cpus.SETTINGS}
    assert cpus.reason_not_to_run(by_name["avx2"], {"avx2"}, 1) == ""
    assert (
        cpus.reason_not_to_run(by_name["avx512"], {"avx512f", "avx512bw", "avx512dq"}, 1)
        == "this CPU has no avx512vl"
    )
    assert cpus.reason_not_to_run(by_name["two-threads"], set(), 1) == "this machine has 1 core"


@pytest.mark.test_all
def test_table_has_a_row_for_each_setting_and_a_failure_is_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs = tmp_path / "test_threads.py"
    needs.write_text(
        "import os\n\n\ndef test_threads():\n    assert os.environ['OMP_NUM_THREADS'] == '1'\n"
    )
    settings = [
        Setting("one", {"OMP_NUM_THREADS": "1"}),
        Setting("none", {"A": "1"}, frozenset({"amx"})),
    ]
    monkeypatch.setattr(cpus, "SETTINGS", [*settings, Setting("two", {"OMP_NUM_THREADS": "2"})])
    monkeypatch.setattr(cpus, "TESTS", [str(needs), "--rootdir", str(tmp_path)])
    monkeypatch.setattr(cpus, "FOLDER", tmp_path / "outputs")
    monkeypatch.setattr(cpus, "flags_of_cpu", set)
    assert cpus.main([]) == 1
    printed = capsys.readouterr().out
    table = [line.split() for line in printed.partition("\n\n")[2].splitlines()]
    assert [row[2] for row in table[:3]] == ["passed", "not", "FAILED"]
    assert "none: not run: this CPU has no amx" in printed
    assert "test_threads.py::test_threads" in printed
    assert "assert '2' == '1'" in (tmp_path / "outputs/two.txt").read_text()
    assert cpus.main(["one"]) == 0
