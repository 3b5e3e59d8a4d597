"""`make test-cpus`: what a setting does to torch, and the emulated rounding."""

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
calls = ((linear, rows), (convolution, images), (lambda it: attention(it, it, it), tokens))
for call, whole in calls:
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


def output(
    python: Path,
    program: str,
    **variables: str,
) -> list[str]:
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


@pytest.mark.parametrize(
    "setting",
    RESTRICTED,
    ids=lambda setting: setting.name,
)
def test_torch_and_onednn_use_the_instructions_of_a_setting(python: Path, setting: Setting) -> None:
    lines = output(python, SHOW, ONEDNN_VERBOSE="1", **setting.variables)
    (onednn,) = [line.partition("isa:")[2] for line in lines if ",cpu,isa:" in line]
    assert lines[-1] == f"torch {setting.variables['ATEN_CPU_CAPABILITY'].upper()}"
    known = {"SSE41": "SSE4.1", "AVX2": "AVX2"}
    assert onednn.split()[1].startswith(
        known.get(setting.variables["ONEDNN_MAX_CPU_ISA"], "AVX-512")
    )
