"""`diptych serve`: an OpenAI-compatible server of one model."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import uvicorn
from rich.console import Console
from rich.table import Table

from engine.api.app import DRAIN_SECONDS, create_app
from engine.commands.load import LoadedModel, add_model_options, load_model
from engine.usage import UsageError


def main(arguments: Sequence[str]) -> int:
    """Serve until interrupted. Errors: UsageError."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    # SIGTERM, as an orchestrator sends it, is Ctrl-C: running requests finish, and the exit code is 0.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(stderr=True, highlight=False)
    try:
        with _bind(options.host, options.port) as listener:  # before the model is loaded: a taken port shows at once
            loaded = load_model(options, console, seed=options.seed)
            served = loaded.served(options.served_model_name)
            url = _url(options.host, listener)
            console.print(_facts(loaded, served.name, url))
            config = uvicorn.Config(
                create_app(served),
                log_config=None,
                access_log=False,
                lifespan="on",
                timeout_graceful_shutdown=int(DRAIN_SECONDS),
            )
            _listen(listener, options.host, options.port)
            _Server(config, lambda: _say_ready(console, url, served.name)).run(sockets=[listener])
    except KeyboardInterrupt:  # the server has stopped by then, and tells by which signal
        pass
    console.print("stopped")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("diptych serve", description="Serve a model over an OpenAI-compatible HTTP API.")
    add_model_options(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument(
        "--port", type=_port, default=8000, help="port to listen on; 0: a free one (default %(default)s)"
    )
    parser.add_argument("--served-model-name", metavar="NAME", help="what clients call the model (default MODEL)")
    parser.add_argument("--seed", type=int, default=0, help="of the random weights of --load-format dummy")
    return parser


def _port(text: str) -> int:
    # The C library takes 65536 for 0 and goes on.
    if not text.isdecimal() or int(text) >= 2**16:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; ports are 0 to 65535")
    return int(text)


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()


def _bind(host: str, port: int) -> socket.socket:
    """A socket at that address that does not listen yet, so clients are refused and do not wait for a model to load.

    Errors: UsageError.
    """
    with _address_errors(host, port):
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except BaseException:
            listener.close()
            raise
    return listener


def _listen(listener: socket.socket, host: str, port: int) -> None:
    # Two servers may be bound to one port while their models load; the second to listen learns of it here.
    with _address_errors(host, port):
        listener.listen()


@contextmanager
def _address_errors(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot listen on {host}:{port}: {reason}; choose with --host and --port") from error


def _url(host: str, listener: socket.socket) -> str:
    """Where a client on this machine finds the server."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{reachable}]' if ':' in reachable else reachable}:{listener.getsockname()[1]}"


def _facts(loaded: LoadedModel, name: str, url: str) -> Table:
    table = Table(show_header=False, title="diptych", title_justify="left", title_style="bold", min_width=40)
    for fact, value in {
        "model": name,
        "parameters": f"{loaded.num_parameters / 1e6:,.1f} M",
        "dtype": loaded.config.dtype.name + (" (weights e4m3)" if loaded.config.fp8_blocks else ""),
        "panel": loaded.panel,
        "context": f"{loaded.core.max_model_len:,} tokens",
        "address": url,
    }.items():
        table.add_row(fact, value)
    return table


def _say_ready(console: Console, url: str, name: str) -> None:
    body = {"model": name, "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 64}
    console.print(f"ready at {url}/v1 (Ctrl-C stops)\n", style="bold green")
    curl = f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{json.dumps(body)}'"
    console.print(curl, soft_wrap=True, markup=False)  # one line, however narrow the terminal: it is there to be copied
