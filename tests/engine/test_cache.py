"""Where what can be made again is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cache import cache_directory


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIPTYCH_CACHE", "~/there")
    assert cache_directory() == Path.home() / "there"
    monkeypatch.delenv("DIPTYCH_CACHE")
    assert cache_directory() == Path.home() / ".cache" / "diptych"


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIPTYCH_CACHE", "~no-such-user/there")
    with pytest.raises(FileNotFoundError, match=r"~no-such-user/there: set DIPTYCH_CACHE"):
        cache_directory()
