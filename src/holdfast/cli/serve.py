"""``holdfast serve``: the HTTP API."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.bearer import is_loopback_host, read_file
from ..core.clock import SystemClock
from ..core.errors import ConfigurationError
from ..core.extras import needed
from ..core.signals import StopSignals
from ..runtime.housekeeping import Chore, Housekeeping
from .exits import CommandError, ExitCode
from .loading import load_app
from .logs import configure_logging
from .options import AppArgument, VerboseOption, option
from .output import print_line, print_note, print_secret
from .trigger_views import require_tables

if TYPE_CHECKING:
    from uvicorn import Server

_LOOK_AROUND_SECONDS = 0.2
_BACKLOG = 256
_LARGEST_PORT = 65_535
_LOOP = "holdfast.api.http_protocol:BoundedLoop"

_HostOption = Annotated[str, typer.Option("--host", help="The address to listen on.")]
_PortOption = Annotated[int, typer.Option("--port", min=0, max=_LARGEST_PORT, help="The port; 0 for any that is free.")]
_TokensOption = Annotated[
    Path | None,
    option("--tokens", metavar="FILE", help="The accepted tokens: on each line the SHA-256, a name, and roles."),
]
_ContinuationKeyOption = Annotated[
    Path | None,
    option(
        "--continuation-key",
        metavar="FILE",
        help="A secret that all instances share, so that each can go on with the other's listings.",
    ),
]
_RateOption = Annotated[float, typer.Option("--rate", min=0.0, help="Requests a second for each token; 0: no limit.")]
_BurstOption = Annotated[int, typer.Option("--burst", min=1, help="Requests at once for each token.")]
_CertOption = Annotated[Path | None, option("--tls-cert", metavar="FILE", help="The server's certificate (PEM).")]
_KeyOption = Annotated[Path | None, option("--tls-key", metavar="FILE", help="The key of the certificate (PEM).")]
_DrainOption = Annotated[
    int, typer.Option("--drain-seconds", min=0, help="How long open requests may take to finish when stopping.")
]
_NewTokenOption = Annotated[
    str | None, option("--new-token", metavar="NAME", help="Make a token of that name, and serve nothing.")
]
_RoleOption = Annotated[
    list[str] | None,
    typer.Option("--role", help="Of the new token: read, payload, operate or admin; may be given several times."),
]


def serve(
    app: AppArgument = None,
    host: _HostOption = "127.0.0.1",
    port: _PortOption = 8080,
    tokens: _TokensOption = None,
    continuation_key: _ContinuationKeyOption = None,
    rate: _RateOption = 20.0,
    burst: _BurstOption = 100,
    tls_cert: _CertOption = None,
    tls_key: _KeyOption = None,
    drain_seconds: _DrainOption = 10,
    new_token: _NewTokenOption = None,
    role: _RoleOption = None,
    verbose: VerboseOption = 0,
) -> None:
    """Serve the HTTP API of an application until SIGTERM or Ctrl-C, then let open requests finish.

    On 127.0.0.1 no token is needed unless there are some; elsewhere it is not served without.
    """
    from ..api import ApiTokens, RateLimit, create_app  # needs the extra server

    if new_token is not None:
        _make_token(new_token, role or [])
        return
    if role:
        raise typer.BadParameter("--role is for a new token. Name it with --new-token")
    is_loopback = is_loopback_host(host)
    _check_listening(host, is_loopback, has_tokens=tokens is not None, tls=(tls_cert, tls_key))
    accepted = ApiTokens() if tokens is None else ApiTokens.read(tokens)
    hf = load_app(app)
    configure_logging(verbose)
    require_tables(hf)
    api = create_app(
        hf,
        tokens=accepted,
        rate_limit=RateLimit(per_second=rate, burst=burst) if rate else None,
        is_loopback=is_loopback,
        continuation_key=None if continuation_key is None else _secret(continuation_key),
    )
    with _listening(host, port) as listener:
        server = _server(api, tls_cert, tls_key, drain_seconds)
        _run(server, listener, "https" if tls_cert else "http", hf.record_chores, drain_seconds)


def _make_token(name: str, roles: list[str]) -> None:
    from ..api import Role
    from ..api import new_token as make_token

    known = {known.value: known for known in Role}
    unknown = [role for role in roles if role not in known]
    if unknown:
        raise typer.BadParameter(f"'{unknown[0]}' is not a role. A token's --role is one of: {', '.join(known)}")
    if not roles:
        raise typer.BadParameter(f"a token needs a --role: {', '.join(known)}")
    token, kept = make_token(name, [known[role] for role in roles])
    print_secret(f"The token of {name}, shown this once: {token}")
    print_line(kept.line)  # alone on standard output, to be appended to the file that --tokens names


def _check_listening(host: str, is_loopback: bool, *, has_tokens: bool, tls: tuple[Path | None, Path | None]) -> None:
    if (tls[0] is None) != (tls[1] is None):
        raise ConfigurationError("--tls-cert and --tls-key belong together. Give both.")
    if is_loopback:
        return
    if not has_tokens:
        raise ConfigurationError(
            f"{host} can be reached from other machines: anyone could read and change records. Give --tokens, or "
            "listen on 127.0.0.1."
        )
    if tls[0] is None:
        print_note(
            "Without TLS, tokens and records can be read on their way. Give --tls-cert and --tls-key, unless a proxy "
            "in front does it."
        )


def _secret(path: Path) -> str:
    return read_file("The file of --continuation-key", path).decode(errors="replace").strip()


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens, made here so that what is wrong with the address is one sentence."""
    bare = host.strip("[]")
    try:
        family, _, _, _, address = socket.getaddrinfo(bare, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise CommandError(
            f"Cannot listen on {bare}, port {port}: {error.strerror or error}. Choose another --host or --port.",
            ExitCode.FAILED,
        ) from error


def _server(api: object, tls_cert: Path | None, tls_key: Path | None, drain_seconds: int) -> Server:
    with needed("Serving needs uvicorn", "server"):
        import uvicorn

        from ..api.http_protocol import BoundedProtocol
    try:
        config = uvicorn.Config(
            api,  # type: ignore[arg-type] # it is one: create_app made it
            log_config=None,  # the command's own
            access_log=False,  # the middleware logs every request, without its parameters
            proxy_headers=False,  # they would let anyone choose the address that we count by
            server_header=False,
            http=BoundedProtocol,
            loop=_LOOP,
            ws="none",
            lifespan="off",
            ssl_certfile=None if tls_cert is None else str(tls_cert),
            ssl_keyfile=None if tls_key is None else str(tls_key),
            timeout_graceful_shutdown=drain_seconds,
        )
        config.load()
    except OSError as error:  # ssl.SSLError is one
        raise ConfigurationError(
            f"The TLS certificate or its key cannot be used: {error.strerror or error}."
        ) from error
    return uvicorn.Server(config)


def _run(server: Server, listener: socket.socket, scheme: str, chores: Sequence[Chore], drain_seconds: float) -> None:
    """Run the server on a thread: here we wait for the signal, and end with our own exit code.

    What it lets people change is sealed, and forgotten in time, although no worker may run. If the process dies, the
    next one does it.
    """
    stop, clock = threading.Event(), SystemClock()
    housekeeping = Housekeeping(chores, stop, clock=clock)
    housekeeper = threading.Thread(target=housekeeping.run, name="holdfast-housekeeping", daemon=True)

    def run() -> None:
        try:
            server.run(sockets=[listener])
        finally:
            stop.set()

    thread = threading.Thread(target=run, name="holdfast-serve")
    with StopSignals(stop, clock):
        thread.start()
        housekeeper.start()
        print_line(f"Serving {_shown_url(scheme, listener)} in process {os.getpid()}. Stop with SIGTERM or Ctrl-C.")
        while not clock.wait(stop, _LOOK_AROUND_SECONDS):
            pass  # a signal that another thread received is handled when this one wakes
        server.should_exit = True
        thread.join()
        housekeeper.join(drain_seconds)
    print_line("Stopped: no request is open any more.")


def _shown_url(scheme: str, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
