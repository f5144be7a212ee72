"""The cache of compiled kernels: whole entries or none, under many processes and damaged files."""

from __future__ import annotations

import logging
import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimized.compile.artifact import Artifact
from optimized.compile.disk_cache import DiskCache
from tests.optimized.fakes import artifact

KEY = "ab" * 32


def never() -> Artifact:
    raise AssertionError("it was built although it is there")


def test_what_is_put_is_found(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "new" / "folder")
    assert cache.get(KEY) is None
    built = cache.get_or_build(KEY, artifact)
    assert built == artifact() == cache.get(KEY) == cache.get_or_build(KEY, never)
    assert DiskCache(cache.directory).get_or_build(KEY, never) == artifact(), "another process finds it"


@given(content=st.binary(max_size=200), ptx=st.text(st.characters(codec="utf-8"), max_size=50))
def test_bytes_and_back(content: bytes, ptx: str) -> None:
    one = Artifact("name", "sm_100a", content, ptx, artifact().resources, 1.5)
    assert Artifact.decode(one.encode()) == one


@given(data=st.data())
def test_no_damage_goes_unnoticed(data: st.DataObject) -> None:
    whole = artifact().encode()
    place = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        damaged = whole[:place]
    else:
        damaged = whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))]) + whole[place + 1 :]
    with pytest.raises(ValueError, match=r"begin|checksum"):
        Artifact.decode(damaged)


@pytest.mark.parametrize("content", [b"", b"diptych kernel 1\n", artifact().encode()[:-1], b"\0" * 500])
def test_a_damaged_file_is_set_aside_and_built_anew(tmp_path: Path, content: bytes) -> None:
    cache = DiskCache(tmp_path)
    cache.path(KEY).write_bytes(content)
    assert cache.get(KEY) is None
    assert cache.get_or_build(KEY, artifact) == artifact()
    assert cache.get(KEY) == artifact()
    assert cache.path(KEY).with_suffix(".damaged").read_bytes() == content


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)

    def fail() -> Artifact:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        cache.get_or_build(KEY, fail)
    assert cache.get(KEY) is None
    assert not list(tmp_path.glob("*.part"))
    assert cache.get_or_build(KEY, artifact) == artifact()


def test_others_may_read_what_is_kept(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        cache = DiskCache(tmp_path)
        cache.get_or_build(KEY, artifact)
    finally:
        os.umask(before)
    assert cache.path(KEY).stat().st_mode & 0o777 == 0o640


def test_an_entry_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    cache.path(KEY).mkdir()  # whoever runs the tests: a folder cannot be read as a file
    assert cache.get(KEY) is None
    assert cache.get_or_build(KEY, artifact) == artifact() == cache.get(KEY)


def refuse(*_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize("fails", ["pathlib.Path.mkdir", "filelock.FileLock.acquire", "pathlib.Path.replace", "open"])
def test_a_folder_that_cannot_be_written_costs_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: str
) -> None:
    cache = DiskCache(tmp_path / "cache")
    if fails == "open":
        monkeypatch.setattr("optimized.compile.disk_cache.open", refuse, raising=False)
    else:
        monkeypatch.setattr(fails, refuse)
    with caplog.at_level(logging.WARNING):
        for key in (KEY, "cd" * 32, KEY):
            assert cache.get_or_build(key, artifact) == artifact()
    [record] = caplog.records
    assert "compiled kernels are not kept in" in record.getMessage() and "Permission denied" in record.getMessage()
    monkeypatch.undo()
    assert not list(cache.directory.glob("*.part"))
    assert cache.get_or_build(KEY, artifact) == cache.get_or_build(KEY, never)


def _ask(directory: Path, number: int) -> int:
    """In a process of its own: how many artifacts it built."""
    built = []

    def build() -> Artifact:
        built.append(number)
        return artifact(content=b"x" * 1_000_000)

    cache = DiskCache(directory)
    for key in range(8):
        assert cache.get_or_build(f"{key:064x}", build).object == b"x" * 1_000_000
    return len(built)


def test_of_many_processes_one_builds(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        counts = pool.starmap(_ask, [(tmp_path, number) for number in range(4)])
    assert sum(counts) == 8, counts
