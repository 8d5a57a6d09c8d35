"""``holdfast jobs-server``: serves workers that have no access to the database."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.clock import SystemClock
from ..core.errors import ConfigurationError, WorkerDiedError
from ..core.signals import StopSignals
from ..runtime.supervisor import watch
from .loading import load_app
from .logs import configure_logging
from .options import AppArgument, VerboseOption, option
from .output import print_line
from .trigger_views import require_tables

if TYPE_CHECKING:
    from ..jobs.grpc.server import JobsServer


_ListenOption = Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Where to listen.")]
_CertOption = Annotated[Path | None, option("--tls-cert", metavar="FILE", help="The server's certificate (PEM).")]
_KeyOption = Annotated[Path | None, option("--tls-key", metavar="FILE", help="The key of the certificate (PEM).")]
_ClientCaOption = Annotated[
    Path | None, option("--tls-client-ca", metavar="FILE", help="Ask workers for a certificate of this CA.")
]
_TokenOption = Annotated[
    Path | None, option("--token-file", metavar="FILE", help="The SHA-256 of each accepted token, one per line.")
]
_InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="Listen for other machines even without TLS and tokens.")
]
_DrainOption = Annotated[
    float, typer.Option("--drain-seconds", min=0.0, help="How long open calls may take to finish when stopping.")
]


def jobs_server(
    app: AppArgument = None,
    listen: _ListenOption = "127.0.0.1:50051",
    tls_cert: _CertOption = None,
    tls_key: _KeyOption = None,
    tls_client_ca: _ClientCaOption = None,
    token_file: _TokenOption = None,
    insecure: _InsecureOption = False,
    drain_seconds: _DrainOption = 10.0,
    verbose: VerboseOption = 0,
) -> None:
    """Serve remote workers over gRPC until SIGTERM or Ctrl-C.

    Stopping gives up nothing: workers keep what they hold and report it to the next server that answers.
    """
    from ..jobs.grpc.security import ServerTls, Tokens  # needs the extra grpc
    from ..jobs.grpc.server import JobsServer

    hf = load_app(app)
    configure_logging(verbose)
    if (tls_cert is None) != (tls_key is None):
        raise ConfigurationError("--tls-cert and --tls-key belong together. Give both.")
    if tls_client_ca is not None and tls_cert is None:
        raise ConfigurationError("--tls-client-ca needs TLS. Give --tls-cert and --tls-key too.")
    tls = None
    if tls_cert is not None and tls_key is not None:
        tls = ServerTls(cert_file=tls_cert, key_file=tls_key, client_ca_file=tls_client_ca)
    require_tables(hf)
    server = JobsServer(
        hf.jobs.store,
        listen,
        keeper_store=hf.jobs.serving_store,
        definitions=hf.jobs.definitions,
        tls=tls,
        tokens=None if token_file is None else Tokens.read(token_file),
        is_insecure=insecure,
        chores=[*hf.jobs.chores(), *hf.record_chores],
    )
    hf.jobs.declare_limits()
    _serve(server, listen, drain_seconds)


def _serve(server: JobsServer, listen: str, drain_seconds: float) -> None:
    stop, clock = threading.Event(), SystemClock()
    with StopSignals(stop, clock):
        server.start()
        host = listen.rpartition(":")[0]
        where = f"{host}:{server.port}, process {os.getpid()}"
        print_line(f"Serving remote workers on {where}. Stop with SIGTERM or Ctrl-C.")
        dead = watch(server.parts(), stop, clock)
        server.stop(drain_seconds)
        if dead:
            raise WorkerDiedError(f"The server has lost {' and '.join(dead)}. Start it again.", has_drained=True)
    print_line("Stopped. Workers keep what they hold, and go on with the next server.")
