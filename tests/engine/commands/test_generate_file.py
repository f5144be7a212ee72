"""`diptych generate --input` answers each line as the HTTP API would, in order, and tells what went wrong."""

from __future__ import annotations

import codecs
import json
import os
import select
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.api.app import create_app
from engine.api.body import MAX_BODY_BYTES
from engine.cli import main
from engine.loop import EngineError
from tests.engine.commands.files import Files, say, text, without_names
from tests.engine.fakes import served_model
from tests.engine.serving import serving

BODIES: list[dict[str, Any]] = [
    say("Hello 😀"),
    say("a\u2028b", n=2, logprobs=2, echo=True),
    say("stop here", stop="here"),
    {"prompt": [[1, 2], [3]], "seed": 7, "max_tokens": 5, "prompt_logprobs": 1},
    {"prompt": "babble", "seed": -1},
    {"prompt": "babble", "seed": 1, "temperature": None, "model": "obedient", "max_tokens": 3},
    {"prompt": "a", "temprature": 1},
    {"prompt": "a", "max_tokens": 0},
    {"prompt": "a" * 300},
    {"prompt": "nan!"},
    {"prompt": "a", "model": "gpt-5"},
]
CHATS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "say:Hello#"}], "temperature": 0},
    {"messages": [{"role": "user", "content": "say:Hello#"}], "max_completion_tokens": 2, "logprobs": True},
    {"messages": [{"role": "user", "content": "refuse me"}]},
    {"messages": []},
]


def test_an_answer_is_that_of_the_http_api(files: Files, model: Path) -> None:
    asked = [("/v1/completions", body) for body in BODIES] + [("/v1/chat/completions", body) for body in CHATS]
    with serving(create_app(served_model(model, max_model_len=256))) as address:
        responses = [httpx.post(address + url, json=body) for url, body in asked]
    batch = [{"custom_id": f"n{i}", "method": "POST", "url": url, "body": body} for i, (url, body) in enumerate(asked)]
    bodies = [body for _, body in asked]
    answers = files.answer(*bodies, *batch, options=("--served-model-name", "obedient"))
    assert len(answers) == 2 * len(asked)
    statuses = []
    for number, (answer, expected) in enumerate(zip(answers[: len(asked)], responses, strict=True)):
        statuses.append(expected.status_code)
        assert answer.pop("id").startswith(f"batch_req_{number}_")
        assert answer.pop("index") == number
        shaped = {"response": expected.json()} if expected.is_success else expected.json()
        assert answer.keys() == shaped.keys()
        for name, value in shaped.items():
            assert without_names(answer[name]) == without_names(value)
    for number, (answer, expected) in enumerate(zip(answers[len(asked) :], responses, strict=True)):
        assert answer.keys() == {"id", "custom_id", "response", "error"}
        assert (answer["custom_id"], answer["error"]) == (f"n{number}", None)
        assert answer["response"].keys() == {"status_code", "request_id", "body"}
        assert answer["response"]["status_code"] == expected.status_code
        assert without_names(answer["response"]["body"]) == without_names(expected.json())
    assert {200, 400, 404, 500} == set(statuses)  # all kinds were compared
    assert len({answer["response"]["request_id"] for answer in answers[len(asked) :]}) == len(asked)


def test_order_and_what_is_wrong_in_between(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    slow = [say("x" * 20, prompt=f"say:{'x' * 20}#slow!") for _ in range(2)]
    quick = [say(f"{number}.") for number in range(20)]
    for number in range(0, 20, 3):
        quick[number] = {"prompt": "a", "wrong": number}
    files.write(*slow, *quick)
    assert files.run("--concurrency", "4") == 1
    answers = files.answers()
    assert [answer["index"] for answer in answers] == list(range(22))
    for number, answer in enumerate(answers[2:]):
        if number % 3:
            assert text(answer) == f"{number}."
        else:
            assert answer["error"]["param"] == "wrong"
    assert capsys.readouterr().err.splitlines()[-1].startswith("22 lines, 7 failed, ")
    files.write(*slow, *(body for body in quick if "wrong" not in body))
    assert files.run("--overwrite") == 0


def test_lines_of_all_kinds(files: Files) -> None:
    batch = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": say("yes")}
    lines: list[tuple[dict[str, Any] | bytes, str]] = [
        (codecs.BOM_UTF8 + json.dumps(say("first")).encode(), ""),
        (json.dumps(say("CR LF")).encode() + b"\r", ""),
        (b"not JSON", "the body is not JSON"),
        (b'{"prompt": "\xff"}', "the body is not JSON"),
        (b'{"prompt": "a", "temperature": NaN}', "the body is not JSON"),
        (b"[1]", "the body must be a JSON object, not list"),
        (b'{"prompt": "' + b"a" * MAX_BODY_BYTES + b'"}', f"the line is larger than {MAX_BODY_BYTES} bytes"),
        ({}, "there is neither prompt, for a completion, nor messages, for a chat"),
        ({"prompt": "a", "messages": []}, "there are both messages, for a chat, and prompt, for a completion"),
        (say("a", stream=True), "stream is true; a line is answered by a line, so it must be false"),
        ({**batch, "body": say("a", stream=True)}, "stream is true"),
        ({**batch, "url": "/v1/embeddings"}, "url: input should be '/v1/chat/completions' or '/v1/completions'"),
        ({**batch, "method": "GET"}, "method: input should be 'POST'"),
        ({**batch, "custom_id": 1}, "custom_id: input should be a valid string"),
        ({**batch, "prompt": "a"}, "unknown parameter 'prompt'"),
        ({"custom_id": "b", "body": {}}, "method is missing"),
        (say("last"), ""),
    ]
    answers = files.answer(*(line for line, _ in lines))
    assert len(answers) == len(lines)
    for answer, (_, message) in zip(answers, lines, strict=True):
        error = answer.get("error") or (answer["response"].get("body") or {}).get("error")
        if message:
            assert error["message"].startswith(message)
            assert error["type"] == "invalid_request_error"
        else:
            assert error is None
    assert [text(answers[number]) for number in (0, 1, -1)] == ["first", "CR LF", "last"]
    assert [answer["custom_id"] for answer in answers[10:16]] == ["a", "a", "a", None, "a", "b"]


def test_blank_lines_count_and_have_no_answer(files: Files) -> None:
    files.input.write_text(f"\n  \r\n{json.dumps(say('a'))}\n\n{json.dumps(say('b'))}")  # the last without an end
    assert files.run() == 0
    assert [(answer["index"], text(answer)) for answer in files.answers()] == [(2, "a"), (4, "b")]


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_input(files: Files, content: str) -> None:
    files.input.write_text(content)
    assert files.run() == 0
    assert files.output.read_bytes() == b""


def test_options_are_for_lines_that_do_not_say(files: Files) -> None:
    chat = {"messages": [{"role": "user", "content": "say:abcdef#"}]}
    order = {"prompt": "say:abcdef#"}
    lines = [
        (order, "abc"),
        ({**order, "max_tokens": None}, "abc"),
        ({**order, "max_tokens": 2}, "ab"),
        (chat, "abc"),
        ({**chat, "max_completion_tokens": 4}, "abcd"),
        ({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": order}, "abc"),
    ]
    answers = files.answer(*(line for line, _ in lines), options=("--max-tokens", "3", "--temperature", "0"))
    assert [text(answer) for answer in answers] == [said for _, said in lines]


def test_a_seed_gives_each_line_its_own(files: Files) -> None:
    babble = {"prompt": "babble", "max_tokens": 12}
    lines = [babble, babble, {**babble, "seed": 5}, babble]

    def said(*options: str) -> list[str]:
        return [text(answer) for answer in files.answer(*lines, options=options)]

    first = said("--seed", "1")
    assert len(set(first)) == 4
    assert said("--seed", "1", "--concurrency", "1") == first
    other = said("--seed", "2")
    assert other[2] == first[2]  # the line's own seed
    assert len({*first, *other}) == 7
    assert len({*said(), *said()}) == 7  # random without


def test_stdin_and_stdout(
    files: Files, obedient: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(say("one"), say("two 😀"))
    with files.input.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert main(["generate", *obedient, "--input", "-"]) == 0
    told = capfd.readouterr()
    assert [text(json.loads(line)) for line in told.out.splitlines()] == ["one", "two 😀"]
    assert told.err.startswith("2 lines, 0 failed")


def test_a_pipe_is_answered_line_by_line(obedient: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks may wait for an answer before asking on."""
    (asked, asking), (answers, answering) = os.pipe(), os.pipe()
    heard = []

    def converse() -> None:
        with open(asking, "wb", buffering=0) as pipe:
            for words in ("one", "two", "three"):
                pipe.write(json.dumps(say(words)).encode() + b"\n")
                if not select.select([answers], [], [], 20)[0]:
                    return
                heard.append(text(json.loads(os.read(answers, 10_000))))

    client = threading.Thread(target=converse)
    with open(asked) as stdin, open(answering, "w") as stdout:
        monkeypatch.setattr("sys.stdin", stdin)
        monkeypatch.setattr("sys.stdout", stdout)
        client.start()
        assert main(["generate", *obedient, "--input", "-", "--output", "-"]) == 0
    client.join()
    os.close(answers)
    assert heard == ["one", "two", "three"]


def test_nobody_reads(files: Files, obedient: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    files.write(say("one"))
    answers, answering = os.pipe()
    os.close(answers)
    with open(answering, "w") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        assert main(["generate", *obedient, "--input", str(files.input)]) == 1


def test_devices(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.write(say("one"))
    files.output = Path(os.devnull)
    assert files.run() == 0
    files.input = Path(os.devnull)
    assert files.run() == 0
    assert capsys.readouterr().err.splitlines()[-1] == "0 lines, 0 failed"


def test_no_space_is_left(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.write(say("one"))
    files.output = Path("/dev/full")
    assert files.run() == 2
    assert "diptych: No space left on device" in capsys.readouterr().err


def test_a_failing_engine_fails_the_lines_it_is_given(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    files.write(say("one"), {"prompt": "crash!"}, say("two"), {"prompt": "nan!"}, say("three"))
    assert files.run("--concurrency", "1") == 1
    assert [a["error"]["code"] if "error" in a else text(a) for a in files.answers()] == [
        "one",
        "engine_failed",
        "two",
        "engine_failed",
        "three",
    ]


def test_an_engine_that_only_fails_is_given_up(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    good, failing = say("one"), {"prompt": "nan!"}
    files.write(failing, good, *[failing] * 8)
    assert files.run("--concurrency", "1") == 1
    assert [number for number, answer in enumerate(files.answers()) if "error" in answer] == [0, *range(2, 10)]
    files.write(failing, good, *[failing] * 50, good)
    with pytest.raises(EngineError, match="9 lines in a row"):
        files.run("--overwrite", "--concurrency", "1")
    assert len(files.answers()) == 2  # the others may yet be answered
    assert "the same command, without --overwrite, goes on after them" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--input", "IN", "--prompt", ""], "--prompt does not go with --input"),
        (["--input", "IN", "--chat"], "--chat does not go with --input"),
        (["--prompt", "a", "--output", "OUT"], "--output needs --input"),
        (["--prompt", "a", "--overwrite"], "--overwrite needs --input"),
        (["--prompt", "a", "--concurrency", "0"], "--concurrency needs --input"),
        (["--prompt", "a", "--served-model-name", "b"], "--served-model-name needs --input"),
        (["--input", "IN", "--concurrency", "0"], "--concurrency is 0; it must be at least 1"),
        (["--input", "IN", "--max-tokens", "0"], "max_tokens is 0"),
        (["--input", "IN", "--temperature", "inf"], "temperature is inf"),
        (["--input", "IN", "--output", "IN"], "are one file"),
        (["--input", "IN", "--output", "IN", "--overwrite"], "are one file"),
        (["--input", "IN", "--overwrite"], "--overwrite needs an --output that is a file"),
        (["--input", "none"], "cannot read none: No such file or directory"),
        (["--input", "."], "cannot read .: it is a directory"),
        (["--input", "IN", "--output", "."], "cannot write .: Is a directory"),
        (["--input", "IN", "--output", "no/such/out"], "cannot write no/such/out: No such file or directory"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    files: Files,
    obedient: list[str],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    message: str,
) -> None:
    files.write(say("one"))
    monkeypatch.chdir(files.input.parent)
    before = files.input.read_bytes()
    named = [{"IN": str(files.input), "OUT": str(files.output)}.get(option, option) for option in options]
    assert main(["generate", *obedient, *named]) == 2
    told = capfd.readouterr()
    assert message in told.err
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert files.input.read_bytes() == before
    assert not files.output.exists()


def test_a_real_model_through_the_engine(tmp_path: Path) -> None:
    """Checkpoint, tokenizer, template, the batching engine and the command, end to end and unchanged."""
    files = Files(tmp_path, ["dense", "--max-num-seqs", "2", "--max-model-len", "1024"])
    question = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 10}
    files.write(question, {"prompt": "a", "temperature": -1}, question)
    assert files.run("--temperature", "0") == 1
    first, wrong, second = files.answers()
    assert text(first) == text(second) == "The capital of France is Paris."
    assert wrong["error"]["param"] == "temperature"
