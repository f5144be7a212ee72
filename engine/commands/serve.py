"""`diptych serve`: an OpenAI-compatible server of one model."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import uvicorn
from rich.console import Console
from rich.table import Table

from engine.api.admission import MAX_REQUESTS
from engine.api.app import DRAIN_SECONDS, create_app
from engine.api.body import MAX_BODY_BYTES
from engine.api.health import HEALTH_SECONDS
from engine.commands.load import LoadedModel, add_model_options, load_model
from engine.core.engine import Engine
from engine.loop import AsyncEngine
from engine.usage import UsageError

API_KEY_VARIABLE = "DIPTYCH_API_KEY"
LISTENER_VARIABLE = "DIPTYCH_LISTENER"  # the descriptor of a socket that listens already: of a server that starts anew
# Longer than clients keep an idle connection (5 s are common), so that none sends into one that is being closed.
KEEP_ALIVE_SECONDS = 15


def main(arguments: Sequence[str]) -> int:
    """Serve until interrupted. Errors: UsageError."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    api_keys = _api_keys(options.api_key)
    # SIGTERM, as an orchestrator sends it, is Ctrl-C: running requests finish, and the exit code is 0.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(stderr=True, highlight=False)
    try:
        with _bind(options.host, options.port) as listener:  # before the model is loaded: a taken port shows at once
            loaded = load_model(options, console, seed=options.seed, warms_up=True)
            served = loaded.served(options.served_model_name)
            url = _url(options.host, listener)
            console.print(_facts(loaded, served.name, url))
            config = uvicorn.Config(
                create_app(
                    served,
                    api_keys=api_keys,
                    max_body_bytes=options.max_body_bytes,
                    max_requests=options.max_requests,
                    health_seconds=options.health_seconds,
                    drain_seconds=options.drain_seconds,
                ),
                log_config=None,
                access_log=False,
                lifespan="on",
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                # By then the engine has given up what runs, and told its clients.
                timeout_graceful_shutdown=math.ceil(options.drain_seconds) + 10,
            )
            _listen(listener, options.host, options.port)
            again = listener.dup()  # the server closes the other one; clients that come meanwhile wait in its queue
            server = _Server(config, served.engine, options.drain_seconds, console)
            server.on_ready = lambda: _say_ready(console, url, served.name, needs_key=bool(api_keys))
            served.engine.on_lost = server.leave
            server.run(sockets=[listener])
            if served.engine.lost:
                console.print("the device was lost: starting anew")
                _start_anew(again)
            again.close()
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
    parser.add_argument(
        "--api-key",
        action="append",
        metavar="KEY",
        help=f"a key that clients may use; may be given again. Others on this machine can read it here, and not in the "
        f"variable {API_KEY_VARIABLE}, which is used if there is no --api-key. With neither, anybody is served",
    )
    parser.add_argument(
        "--max-requests",
        type=_positive_int,
        default=MAX_REQUESTS,
        metavar="N",
        help="choices asked for at once, running and waiting; what is beyond gets a 429 (default %(default)s)",
    )
    parser.add_argument(
        "--max-body-bytes",
        type=_positive_int,
        default=MAX_BODY_BYTES,
        metavar="N",
        help="the largest body of a request (default %(default)s)",
    )
    parser.add_argument(
        "--health-seconds",
        type=_positive_seconds,
        default=HEALTH_SECONDS,
        metavar="S",
        help="how long /health?generate=1 waits for its token (default %(default)s)",
    )
    parser.add_argument(
        "--drain-seconds",
        type=_positive_seconds,
        default=DRAIN_SECONDS,
        metavar="S",
        help="how long running requests may go on after Ctrl-C or SIGTERM (default %(default)s)",
    )
    return parser


def _positive_int(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _positive_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _api_keys(given: list[str] | None) -> list[str]:
    """The keys that clients may use. Errors: UsageError for one that no header can carry."""
    in_environment = os.environ.get(API_KEY_VARIABLE)
    keys = given or ([in_environment] if in_environment else [])
    if any(not key or not all("!" <= character <= "~" for character in key) for key in keys):
        raise UsageError("an API key must be printable ASCII without spaces, and not empty")
    return keys


def _port(text: str) -> int:
    # The C library takes 65536 for 0 and goes on.
    if not text.isdecimal() or int(text) >= 2**16:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; ports are 0 to 65535")
    return int(text)


class _Server(uvicorn.Server):
    """Says when it listens, and stops as one expects: once gracefully, twice at once."""

    on_ready: Callable[[], None]

    def __init__(self, config: uvicorn.Config, engine: AsyncEngine, drain_seconds: float, console: Console) -> None:
        super().__init__(config)
        self._engine, self._drain_seconds, self._console = engine, drain_seconds, console

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.server_state.tasks:
            self._console.print("finishing what runs; Ctrl-C stops at once")
        # Together with the connections, not after them as the application does: so that a request which is still on its
        # way in is refused, and one that takes too long is told, not cut off.
        draining = asyncio.create_task(asyncio.to_thread(self._engine.stop, self._drain_seconds))
        await super().shutdown(sockets)
        await draining

    def leave(self) -> None:
        """From any thread: stop gracefully."""
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and sig == signal.SIGINT:
            # Nothing here needs to be put in order, and asyncio would tell of every request that it cancels.
            os.write(sys.stderr.fileno(), b"stopped at once\n")
            os._exit(130)
        super().handle_exit(sig, frame)


def _bind(host: str, port: int) -> socket.socket:
    """A socket at that address that does not listen yet, so clients are refused and do not wait for a model to load.

    Errors: UsageError.
    """
    inherited = os.environ.pop(LISTENER_VARIABLE, None)
    if inherited is not None:
        return socket.socket(fileno=int(inherited))
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


def _start_anew(listener: socket.socket) -> None:
    """This command again, in this process's place: what was lost with its device is lost for all it holds."""
    listener.set_inheritable(True)
    os.environ[LISTENER_VARIABLE] = str(listener.fileno())
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


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


def _capacity(loaded: LoadedModel) -> dict[str, str]:
    """How much of the model's context is served, and for how many tokens at once there is KV memory."""
    context, trained = loaded.core.max_model_len, loaded.config.max_position_embeddings
    if not isinstance(loaded.core, Engine):
        return {"context": f"{context:,} tokens"}
    capacity = loaded.core.kv_capacity
    cut = f" of {trained:,}: the KV cache holds no more (--kv-cache-tokens)" if context == capacity < trained else ""
    return {"context": f"{context:,} tokens{cut}", "KV cache": f"{capacity:,} tokens"}


def _loading(loaded: LoadedModel) -> str:
    """How long what took."""
    num_bytes, seconds = loaded.checkpoint.num_bytes, loaded.seconds["weights"]
    of_weights = f"{num_bytes / 1e9:,.2f} GB in {seconds:.1f} s ({num_bytes / seconds / 1e9:.2f} GB/s)"
    return of_weights + (f", warm-up in {loaded.seconds['warm-up']:.1f} s" if "warm-up" in loaded.seconds else "")


def _facts(loaded: LoadedModel, name: str, url: str) -> Table:
    table = Table(show_header=False, title="diptych", title_justify="left", title_style="bold", min_width=40)
    for fact, value in {
        "model": name,
        "parameters": f"{loaded.num_parameters / 1e6:,.1f} M",
        "dtype": loaded.config.dtype.name + (" (weights e4m3)" if loaded.config.fp8_blocks else ""),
        "panel": loaded.panel + (f" ({loaded.panel_reason})" if loaded.panel_reason else ""),
        "loaded": _loading(loaded),
        **_capacity(loaded),
        "address": url,
    }.items():
        table.add_row(fact, value)
    return table


def _say_ready(console: Console, url: str, name: str, *, needs_key: bool) -> None:
    body = {"model": name, "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 64}
    console.print(f"ready at {url}/v1 (Ctrl-C stops)\n", style="bold green")
    key = f'-H "Authorization: Bearer ${API_KEY_VARIABLE}" ' if needs_key else ""
    curl = f"curl {url}/v1/chat/completions {key}-H 'Content-Type: application/json' -d '{json.dumps(body)}'"
    console.print(curl, soft_wrap=True, markup=False)  # one line, however narrow the terminal: it is there to be copied
