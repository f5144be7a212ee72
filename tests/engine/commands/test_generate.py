"""`diptych generate` prints the answer to stdout, and nothing else there."""

from __future__ import annotations

import io

import pytest

from engine.cli import main


def test_a_prompt(obedient: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", *obedient, "--prompt", "say:Hello 😀#"]) == 0
    assert capsys.readouterr() == ("Hello 😀\n", "")


def test_chat(obedient: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", *obedient, "--chat", "--prompt", "say:Hello#"]) == 0
    assert capsys.readouterr().out == "Hello\n"


def test_stdin(obedient: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("say:two\nlines#\n"))
    assert main(["generate", *obedient, "--temperature", "0"]) == 0
    shown = capsys.readouterr().out
    # Only the last line end is dropped: with it the model would have to say another text after the mark.
    assert shown == "two\nlines\n"


def test_no_prompt(obedient: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    assert main(["generate", *obedient]) == 2
    assert "--prompt TEXT" in capsys.readouterr().err


def test_seed_and_length(obedient: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def babble(seed: int) -> str:
        assert main(["generate", *obedient, "--prompt", "babble", "--seed", str(seed), "--max-tokens", "12"]) == 0
        return capsys.readouterr().out

    assert babble(1) == babble(1) != babble(2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-tokens", "0"], "max_tokens"),
        (["--temperature", "-1"], "temperature"),
        (["--temperature", "nan"], "temperature"),
        (["--seed", str(2**64)], "seed"),
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "a" * 256], "the prompt has 256 tokens"),
        (["--prompt", "\udcff"], "surrogate"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    obedient: list[str], capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["generate", *obedient, "--prompt", "a", *options]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert message in told.err
    assert told.err.count("\n") == 1


@pytest.mark.parametrize(("prompt", "begun"), [("crash!", ""), ("say:boom and more#", "boom\n")])
def test_a_failure_that_is_ours_is_no_error_of_the_user(
    obedient: list[str], capsys: pytest.CaptureFixture[str], prompt: str, begun: str
) -> None:
    with pytest.raises(RuntimeError, match="the engine failed"):
        main(["generate", *obedient, "--prompt", prompt])
    assert capsys.readouterr().out == begun


def test_the_built_in_model_knows_the_capital_of_france(capsys: pytest.CaptureFixture[str]) -> None:
    """Checkpoint, tokenizer, template, reference panel and command, end to end and unchanged."""
    question = "What is the capital of France?"
    assert main(["generate", "--chat", "--temperature", "0", "--max-tokens", "10", "--prompt", question]) == 0
    told = capsys.readouterr()
    assert "Paris" in told.out
    assert told.err == ""
