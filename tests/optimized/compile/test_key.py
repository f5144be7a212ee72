"""A key holds all that machine code depends on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from optimized.compile import key
from optimized.compile.arch import ARCHS, SM_90A, SM_100A, arch_named, arch_of_capability
from optimized.compile.kernel import Kernel
from tests.optimized.fakes import Scale


@dataclass(frozen=True)
class Other(Kernel):
    factor: float
    dtype: str = "float32"

    def arguments(self) -> tuple[Any, ...]:
        return ()

    def __call__(self, *arguments: Any) -> None: ...


def test_every_constant_the_arch_and_the_class_are_in_it() -> None:
    one = Scale(2.0)
    keys = {
        key.compile_key(one, SM_90A),
        key.compile_key(one, SM_100A),
        key.compile_key(replace(one, factor=3.0), SM_90A),
        key.compile_key(replace(one, dtype="float16"), SM_90A),
        key.compile_key(Other(2.0), SM_90A),
    }
    assert len(keys) == 5
    assert key.compile_key(Scale(2.0), SM_90A) in keys, "the same again has the same key"


def test_the_compilers_versions_are_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = key.compiler_versions()
    assert {"nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base", "apache-tvm-ffi"} <= set(versions)
    before = key.compile_key(Scale(2.0), SM_90A)
    for name in versions:
        monkeypatch.setattr(key, "compiler_versions", lambda name=name: versions | {name: "0"})
        assert key.compile_key(Scale(2.0), SM_90A) != before, name


def test_the_source_is_in_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "a.py").write_text("x = 1\n")
    monkeypatch.setattr(key, "_ROOT", tmp_path)
    hashes = []
    for name, text in [("a.py", "x = 1\n"), ("a.py", "x = 2\n"), ("b.py", "x = 2\n"), ("b.py", "")]:
        (tmp_path / "kernels" / name).write_text(text)
        hashes.append(key.source_hash())
    assert len(set(hashes)) == 4


def test_symbols_differ_where_constants_do() -> None:
    """Two widths of one kernel in one process."""
    symbols = {Scale(2.0).symbol, Scale(3.0).symbol, Scale(2.0, "float16").symbol, Other(2.0).symbol}
    assert len(symbols) == 4
    assert all(symbol.isidentifier() for symbol in symbols)


def test_architectures_by_name_and_by_chip() -> None:
    assert arch_named("sm_103a") is ARCHS["sm_103a"]
    assert arch_of_capability(9, 0) is SM_90A
    with pytest.raises(ValueError, match="'sm_80'; known are sm_90a, sm_100a, sm_103a"):
        arch_named("sm_80")
    with pytest.raises(ValueError, match="8\\.0 is not supported; supported are H200"):
        arch_of_capability(8, 0)
