"""Parts of libraries are found, without triton, and importing them changes nothing of ours."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

from optimized.compile.arch import SM_90A, SM_100A
from optimized.compile.build import build
from optimized.compile.key import compile_key
from optimized.kernels.linear_many_rows_gemm import ManyRowsGemm
from optimized.kernels.rms_norm import RmsNorm
from optimized.libraries import FLASH_ATTENTION, QUACK, library_versions, missing, part_of_library

GEMM = ManyRowsGemm(9, "bfloat16", 128, 192, 2, 1, True, 66, "", False, False, False, False)
installed = pytest.mark.skipif(missing(QUACK, FLASH_ATTENTION) is not None, reason="the libraries are not installed")


def test_what_is_not_installed_is_named() -> None:
    assert missing("numpy") is None
    assert missing("numpy", "diptych-lacks-this") == (
        "diptych-lacks-this cannot be found; pip install 'diptych[libraries]' brings it"
    )
    assert library_versions("diptych-lacks-this") == {"diptych-lacks-this": ""}
    with pytest.raises(ImportError, match=r"No module named 'diptych_lacks'; pip install 'diptych\[libraries\]'"):
        part_of_library("diptych_lacks:name")


@installed
def test_the_versions_are_those_that_are_pinned() -> None:
    """`_mint` of quack's epilogues is no interface of theirs."""
    assert library_versions(QUACK, FLASH_ATTENTION) == {QUACK: "0.6.5", FLASH_ATTENTION: "4.0.0b36"}


@installed
def test_another_version_or_arch_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    one = compile_key(GEMM, SM_90A)
    assert one != compile_key(GEMM, SM_100A) and one != compile_key(replace(GEMM, tile_n=128), SM_90A)
    assert GEMM.symbol != replace(GEMM, generation=10).symbol
    library_versions.cache_clear()
    distributions = metadata.distributions

    class Newer:
        version = "0.6.6"

    monkeypatch.setattr(metadata, "distributions", lambda **named: [Newer()] if named else distributions())
    assert compile_key(GEMM, SM_90A) != one
    library_versions.cache_clear()


@installed
def test_the_libraries_leave_our_kernels_as_they_are() -> None:
    """quack patches how the DSL's tensors are indexed, for the whole process."""
    norm = RmsNorm(256, "bfloat16", "bfloat16", 1e-6, 0.0, 8, 1, 32, 4)
    before = build(norm, SM_90A) if "quack" not in sys.modules else None
    part_of_library("quack.gemm_default_epi:GemmDefaultSm90")
    after = build(norm, SM_90A)
    if before is not None:
        assert (before.ptx, before.object) == (after.ptx, after.object)


@installed
def test_they_are_imported_without_triton_and_from_any_folder(tmp_path: Path) -> None:
    """In a process of its own: nothing stands for triton when the import is done; and quack, in a folder that is not
    named site-packages, does not look for a key of all that the compiler calls, as it would by itself."""
    for name in ("cutlass", "quack"):
        (path,) = find_spec(name).submodule_search_locations  # type: ignore[union-attr,misc]
        (tmp_path / name).symlink_to(path)
    code = (
        "from importlib import import_module; from importlib.util import find_spec; import sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r}); had = find_spec('triton') is not None\n"
        "from optimized.libraries import part_of_library\n"
        "part_of_library('quack.gemm_default_epi:GemmDefaultSm90')\n"
        "assert had or 'triton' not in sys.modules\n"
        "import torch.utils._triton as of_torch; assert of_torch.has_triton_package() == had\n"
        "import cutlass; assert cutlass.__file__.startswith(sys.path[0])\n"
        "try: import_module('quack.epilogue.library')\n"
        "except TypeError as error: assert 'no fail-closed semantic key' in str(error)\n"
        "else: raise AssertionError('quack can do it by itself: _fingerprints is not needed')\n"
        "assert part_of_library('quack.epilogue.library:swiglu_mod').outputs == ('postact',)\n"
        "import quack.gemm_runtime.identity as identity\n"
        "assert identity._is_extern_function.__module__ == 'quack.gemm_runtime.identity'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
