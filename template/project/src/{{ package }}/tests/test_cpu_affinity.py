"""Each rank has CPU cores of its own, with its loader workers, unless they are divided already."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from .. import techniques
from ..config import LoaderConfig, RunConfig
from ..distributed import World
from ..errors import UserError
from ..loaders import Loader, worker_count
from ..techniques import cpu_affinity

ON = RunConfig(cpu_affinity=True)
SECOND = World(1, 2, torch.device("cpu"))


class Cores:
    """Samples that are the cores of the process that reads them."""

    def __len__(self) -> int:
        return 1

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, ...]:
        return (torch.tensor(sorted(os.sched_getaffinity(0))),)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Any]], None]:
    """Set what the ranks tell each other: host, and cores."""

    def tell(told: list[Any]) -> None:
        def gather(found: list[Any], own: Any) -> None:
            found[:] = [own if it is None else it for it in told]

        monkeypatch.setattr(dist, "all_gather_object", gather)

    return tell


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_rank_and_its_workers_have_half_of_the_cores_during_the_run(ranks: Callable[[list[Any]], None]) -> None:
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this machine has one core, or cannot divide them")
    before = os.sched_getaffinity(0)
    ranks([None, None])
    with techniques.own_cores(ON, SECOND) as said:
        own = os.sched_getaffinity(0)
        loaded = [batch[0].tolist() for batch in Loader(Cores(), [[0]], LoaderConfig(), 1, SECOND)]
    assert own == set(cpu_affinity.share(sorted(before), 1, 2)) != before
    assert loaded == [sorted(own)]
    assert said == {"CPU cores": f"{len(own)} of {len(before)} for this rank"}
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot divide cores")
def test_cores_that_are_divided_already_are_kept(
    ranks: Callable[[list[Any]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.sched_getaffinity(0)
    ranks([(socket.gethostname(), [10_000]), None])
    with techniques.own_cores(ON, SECOND) as said:
        assert os.sched_getaffinity(0) == before
    assert said == {"CPU cores": "as divided by what has started the ranks"}
    for cfg, world in ((RunConfig(), SECOND), (ON, World(0, 1, torch.device("cpu")))):
        with techniques.own_cores(cfg, world) as said:
            assert said == {}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    ranks([None, None])
    with (
        pytest.raises(UserError, match=r"^run.cpu_affinity is true: the 2 ranks here have 1 cores; set it to false$"),
        techniques.own_cores(ON, SECOND),
    ):
        pass


def test_neighbors_share_a_socket_and_no_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two sockets with two cores each, of two threads each, numbered as Linux does."""
    for number in range(8):
        folder = tmp_path / f"cpu{number}"
        folder.mkdir()
        (folder / "physical_package_id").write_text(f"{number % 4 // 2}\n")
        (folder / "core_id").write_text(f"{number % 2}\n")
    monkeypatch.setattr(cpu_affinity, "TOPOLOGY", str(tmp_path) + "/cpu{}/")
    assert [cpu_affinity.share(range(8), rank, 4) for rank in range(4)] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert [cpu_affinity.share(range(8, 13), rank, 2) for rank in (0, 1)] == [[8, 9], [10, 11, 12]], "unknown ones"


def test_workers_are_counted_from_the_cores_of_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    counts = [worker_count(LoaderConfig(), False, torch.device("cuda"), own) for own in (False, True)]
    assert counts == [1, 7]
