"""A project for two hosts, which are network namespaces of this machine, joined by a cable."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from matrix import ENGINE_MODEL
from program import Fastproj


def render_for_two(fastproj: Fastproj, folder: Path) -> Path:
    """Render a project for two hosts with one GPU each, with the launchers for several hosts."""
    hardware = ["--gpus=1", "--nodes=2", "--tensor-cores=none", "--components=multinode,slurm"]
    result = fastproj(
        "new",
        "proj",
        "--model",
        ENGINE_MODEL,
        *hardware,
        "--no-git",
        "--yes",
        "--output",
        str(folder),
    )
    assert result.returncode == 0, result.stderr
    return folder / "proj"


def missing() -> str:
    """Return why there are no namespaces on this machine, or nothing."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        return "needs root and the program ip, for network namespaces: sudo make test-all"
    tried = subprocess.run(
        ["unshare", "--net", "true"],
        capture_output=True,
        check=False,
    )
    return (
        ""
        if tried.returncode == 0
        else "needs a machine that allows network namespaces: make test-all"
    )


@contextmanager
def two_hosts() -> Iterator[list[tuple[list[str], str]]]:
    """Return, for each host, the words that start a command on it, and its address."""
    names = [f"fastproj-{os.getpid()}-{place}" for place in (0, 1)]
    cables = [f"fp{os.getpid()}{place}" for place in "ab"]
    addresses = ["10.39.0.1", "10.39.0.2"]
    try:
        for name in names:
            ip("netns", "add", name)
        ip(
            "link",
            "add",
            cables[0],
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            cables[1],
            "netns",
            names[1],
        )
        for name, cable, address in zip(
            names,
            cables,
            addresses,
            strict=True,
        ):
            ip("-n", name, "link", "set", cable, "name", "eth0")
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", name, "link", "set", device, "up")
        yield [
            (["ip", "netns", "exec", name], address)
            for name, address in zip(names, addresses, strict=True)
        ]
    finally:
        for name in names:
            subprocess.run(
                ["ip", "netns", "delete", name],
                capture_output=True,
                check=False,
            )


def ip(*words: str) -> None:
    """Run the program ip."""
    subprocess.run(["ip", *words], check=True, capture_output=True)
