"""No attack loses an edit, executes code, hangs or leaves something: a part of it here, all in `make test-all`."""

import pytest
from arena import Arena
from attack import FAST, attempt, cases
from matrix import EVERY
from project_state import harness


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Arena:
    return Arena.make(tmp_path_factory.mktemp("arena"))


@pytest.mark.parametrize("name", [it for it in cases() if EVERY or it.startswith(tuple(FAST))])
def test_attempt_finds_nothing(name: str, arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in harness().items():
        monkeypatch.setenv(key, value)
    runs, found = attempt(arena, name)
    assert found == []
    assert runs
