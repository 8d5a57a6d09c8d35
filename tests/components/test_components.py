"""Every component starts, does one round trip and stops; every fault does to a client what it says.

The other tests trust these servers and faults, so they are shown to work here first.
"""

import http.client
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pymysql
import pytest
from azure.core import MatchConditions
from azure.core.exceptions import ResourceExistsError, ResourceModifiedError
from azure.cosmos.exceptions import CosmosAccessConditionFailedError
from azure.data.tables import TableServiceClient
from azure.storage.blob import BlobServiceClient
from botocore.exceptions import ClientError
from sqlalchemy import create_engine, make_url, text

from tests.components import availability, workspace
from tests.components.azurite import AzuriteServer
from tests.components.cosmos import CosmosServer
from tests.components.mariadb import MariadbServer
from tests.components.ports import HOST
from tests.components.postgres import PostgresServer
from tests.components.processes import PythonWorker, wait_until
from tests.components.proxy import FaultProxy
from tests.components.s3 import S3Server
from tests.components.server import Server


def process_state(pid: int) -> str:
    """Linux's letter for what the process does: R(uns), S(leeps), T (stopped), Z(ombie); empty when gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_gone(pid: int) -> bool:
    """True when no process has this id, or only the remains of one nobody has collected yet."""
    return process_state(pid) in ("", "Z")


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def round_trip(url: str) -> str:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE kept (word VARCHAR(20))"))
        connection.execute(text("INSERT INTO kept VALUES ('held fast')"))
    with engine.connect() as connection:
        word: str = connection.execute(text("SELECT word FROM kept")).scalar_one()
    engine.dispose()
    return word


def read_word(url: str) -> str:
    engine = create_engine(url)
    with engine.connect() as connection:
        word: str = connection.execute(text("SELECT word FROM kept")).scalar_one()
    engine.dispose()
    return word


def test_sqlite_keeps_a_row(sqlite_url: str) -> None:
    assert round_trip(sqlite_url) == "held fast"


def test_postgres18_keeps_a_row(postgres_url: str, postgres_server: PostgresServer) -> None:
    assert round_trip(postgres_url) == "held fast"
    with psycopg.connect(postgres_server.dsn()) as connection:
        assert connection.info.server_version // 10_000 == 18


def test_postgres15_keeps_a_row(postgres15_url: str, postgres15_server: PostgresServer) -> None:
    assert round_trip(postgres15_url) == "held fast"
    with psycopg.connect(postgres15_server.dsn()) as connection:
        assert connection.info.server_version // 10_000 == 15


def test_mariadb_keeps_a_row(mariadb_url: str) -> None:
    assert round_trip(mariadb_url) == "held fast"


def test_postgres_keeps_committed_rows_over_a_crash(postgres_url: str, postgres_server: PostgresServer) -> None:
    round_trip(postgres_url)
    before = postgres_server.pid
    postgres_server.restart(immediate=True)
    assert postgres_server.pid != before
    assert read_word(postgres_url) == "held fast"


def test_mariadb_keeps_committed_rows_over_a_crash(mariadb_url: str, mariadb_server: MariadbServer) -> None:
    round_trip(mariadb_url)
    mariadb_server.restart(immediate=True)
    assert read_word(mariadb_url) == "held fast"


def test_postgres_sessions_can_be_ended_by_the_server(postgres_url: str, postgres_server: PostgresServer) -> None:
    database = postgres_url.rsplit("/", 1)[1]
    with psycopg.connect(postgres_server.dsn(database)) as victim:
        assert postgres_server.terminate_sessions(database) == 1
        with pytest.raises(psycopg.OperationalError):
            victim.execute("SELECT 1")


def test_mariadb_sessions_can_be_ended_by_the_server(mariadb_url: str, mariadb_server: MariadbServer) -> None:
    database = str(make_url(mariadb_url).database)
    victim = pymysql.connect(host=HOST, port=mariadb_server.port, user="root", database=database)
    assert mariadb_server.terminate_sessions(database) == 1
    with victim.cursor() as cursor, pytest.raises(pymysql.err.OperationalError):
        cursor.execute("SELECT 1")


def test_azurite_refuses_a_stale_blob_write(azurite: AzuriteServer, azurite_container: str) -> None:
    with BlobServiceClient.from_connection_string(azurite.connection_string) as service:
        blob = service.get_blob_client(azurite_container, "state")
        etag = blob.upload_blob(b"one")["etag"]
        blob.upload_blob(b"two", overwrite=True)
        with pytest.raises(ResourceModifiedError):
            blob.upload_blob(b"three", overwrite=True, etag=etag, match_condition=MatchConditions.IfNotModified)
        assert blob.download_blob().readall() == b"two"


def test_azurite_refuses_a_second_table_row(azurite: AzuriteServer, azurite_table: str) -> None:
    entity = {"PartitionKey": "p", "RowKey": "r", "word": "held fast"}
    with TableServiceClient.from_connection_string(azurite.connection_string) as service:
        table = service.get_table_client(azurite_table)
        table.create_entity(entity)
        with pytest.raises(ResourceExistsError):
            table.create_entity(entity)
        assert table.get_entity("p", "r")["word"] == "held fast"


def test_s3_refuses_a_stale_write(s3_server: S3Server, s3_bucket: str) -> None:
    client = s3_server.client()
    etag = client.put_object(Bucket=s3_bucket, Key="state", Body=b"one")["ETag"]
    client.put_object(Bucket=s3_bucket, Key="state", Body=b"two", IfMatch=etag)
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.put_object(Bucket=s3_bucket, Key="state", Body=b"three", IfMatch=etag)
    assert client.get_object(Bucket=s3_bucket, Key="state")["Body"].read() == b"two"
    client.close()


def test_cosmos_refuses_a_stale_write(cosmos_server: CosmosServer, cosmos_container: tuple[str, str]) -> None:
    database, name = cosmos_container
    with cosmos_server.client() as client:
        container = client.get_database_client(database).get_container_client(name)
        first = container.create_item({"id": "state", "word": "one"})
        container.replace_item("state", {"id": "state", "word": "two"})
        with pytest.raises(CosmosAccessConditionFailedError):
            container.replace_item(
                "state",
                {"id": "state", "word": "three"},
                etag=first["_etag"],
                match_condition=MatchConditions.IfNotModified,
            )


@pytest.mark.component("s3")
def test_a_stopped_server_is_gone_and_comes_back_on_its_port() -> None:
    server: Server = S3Server()
    with server:
        pid, port = server.pid, server.port
        assert listens(port)
        server.stop(immediate=False)
        assert is_gone(pid)
        assert not listens(port)
        server.start()
        assert (server.port, listens(port)) == (port, True)
    assert not listens(port)


@pytest.mark.component("postgres18")
@pytest.mark.component("s3")
@pytest.mark.component("mariadb")
def test_servers_die_with_a_killed_test_run() -> None:
    code = """
import threading
from tests.components.postgres import PostgresServer, find_postgres18, runnable
from tests.components.mariadb import MariadbServer
from tests.components.s3 import S3Server
servers = [PostgresServer(runnable(find_postgres18())), MariadbServer(), S3Server()]
print("pids", *[server.start().pid for server in servers])
threading.Event().wait()
"""
    with PythonWorker("-c", code) as run:
        pids = [int(word) for word in run.wait_for_line("pids", timeout_seconds=60).split()[1:]]
        assert not any(is_gone(pid) for pid in pids)
        run.kill()
    wait_until(lambda: all(is_gone(pid) for pid in pids), f"the end of processes {pids}")


def test_abandoned_directories_are_removed_and_used_ones_kept() -> None:
    abandoned = workspace.PARENT / f"{workspace.PREFIX}abandoned-{os.getpid()}"
    abandoned.mkdir()
    (abandoned / workspace.LOCK).touch()
    os.utime(abandoned / workspace.LOCK, (0, 0))
    os.utime(workspace.workspace() / workspace.LOCK, (0, 0))
    workspace.remove_abandoned()
    assert not abandoned.exists()
    assert workspace.workspace().exists()


def test_a_missing_component_skips_or_fails_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(availability.CHECKS, "cosmos", lambda: "it is not here")
    monkeypatch.setattr(availability, "skipped", {})
    monkeypatch.delenv(availability.REQUIRE, raising=False)
    with pytest.raises(pytest.skip.Exception, match="it is not here"):
        availability.need("cosmos")
    assert availability.skipped == {"cosmos": "it is not here"}
    monkeypatch.setenv(availability.REQUIRE, "s3, cosmos")
    with pytest.raises(pytest.fail.Exception, match="it is not here"):
        availability.need("cosmos")
    monkeypatch.setenv(availability.REQUIRE, "cosmoss")
    with pytest.raises(pytest.UsageError, match="cosmoss"):
        availability.required()


COUNTER = "import itertools, threading\nfor n in itertools.count(): print(n); threading.Event().wait(0.01)"


def test_a_worker_can_be_suspended_resumed_and_killed() -> None:
    with PythonWorker("-c", COUNTER) as worker:
        worker.wait_for_line("3")
        worker.suspend()
        assert process_state(worker.pid) == "T"
        frozen = len(worker.lines)
        worker.resume()
        wait_until(lambda: len(worker.lines) > frozen, "more lines after resuming")
        worker.kill()
        assert worker.wait() == -signal.SIGKILL


def test_waiting_for_a_line_fails_when_the_worker_ends_without_it() -> None:
    with (
        PythonWorker("-c", "print('something else')") as worker,
        pytest.raises(AssertionError, match="something else"),
    ):
        worker.wait_for_line("the right thing")


class EchoServer:
    """Answers every piece of data with the same data and remembers what it got."""

    def __init__(self) -> None:
        self.listener = socket.create_server((HOST, 0))
        self.port: int = self.listener.getsockname()[1]
        self.received = b""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=[connection], daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1000):
                    self.received += data
                    connection.sendall(data)
            except ConnectionError:
                return


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    server = EchoServer()
    yield server
    server.listener.shutdown(socket.SHUT_RDWR)
    server.listener.close()


@pytest.fixture
def proxy(echo: EchoServer) -> Iterator[FaultProxy]:
    with FaultProxy(echo.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[socket.socket]:
    with socket.create_connection((HOST, proxy.port), timeout=5) as connection:
        connection.sendall(b"hello")
        assert connection.recv(100) == b"hello"
        yield connection


def test_proxy_cuts_connections_and_accepts_new_ones(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(100)
    assert proxy.connections == 0
    with socket.create_connection((HOST, proxy.port), timeout=5) as again:
        again.sendall(b"back")
        assert again.recv(100) == b"back"


def test_proxy_blackhole_is_silent_and_delivers_late(
    proxy: FaultProxy, client: socket.socket, echo: EchoServer
) -> None:
    proxy.blackhole()
    client.sendall(b"into the dark")
    client.settimeout(0.1)
    with pytest.raises(TimeoutError):
        client.recv(100)
    assert echo.received == b"hello"
    with socket.create_connection((HOST, proxy.port), timeout=0.1) as another:
        another.sendall(b"anybody?")
        with pytest.raises(TimeoutError):
            another.recv(100)
    proxy.pass_through()
    client.settimeout(5)
    assert client.recv(100) == b"into the dark"


def test_proxy_refuses_new_connections_and_keeps_open_ones(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, proxy.port), timeout=5)
    client.sendall(b"still here")
    assert client.recv(100) == b"still here"
    proxy.pass_through()
    with socket.create_connection((HOST, proxy.port), timeout=5) as again:
        again.sendall(b"back")
        assert again.recv(100) == b"back"


def test_proxy_delays(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.delay(0.2)
    client.sendall(b"slow")
    client.settimeout(0.1)
    with pytest.raises(TimeoutError):
        client.recv(100)
    client.settimeout(5)
    assert client.recv(100) == b"slow"


def test_proxy_loses_an_answer_after_the_server_did_the_work(
    proxy: FaultProxy, client: socket.socket, echo: EchoServer
) -> None:
    dropped = proxy.drop_next_answer(containing=b"WRITE")
    client.sendall(b"read")
    assert client.recv(100) == b"read"
    client.sendall(b"WRI")
    assert client.recv(100) == b"WRI"
    client.sendall(b"TE")
    with pytest.raises(ConnectionResetError):
        client.recv(100)
    assert dropped.wait(5)
    assert echo.received == b"helloreadWRITE"


def test_proxy_loses_a_request_before_the_server_saw_it(
    proxy: FaultProxy, client: socket.socket, echo: EchoServer
) -> None:
    dropped = proxy.drop_next_request()
    client.sendall(b"WRITE")
    with pytest.raises(ConnectionResetError):
        client.recv(100)
    assert dropped.wait(5)
    assert echo.received == b"hello"


def test_proxy_passes_an_orderly_end(proxy: FaultProxy, client: socket.socket) -> None:
    client.shutdown(socket.SHUT_WR)
    assert client.recv(100) == b""
    wait_until(lambda: proxy.connections == 0, "the proxy to forget the connection")


def test_proxy_redirects_an_address() -> None:
    proxy = FaultProxy(2000)
    with proxy:
        assert proxy.redirect("x://root@127.0.0.1:2000/d") == f"x://root@127.0.0.1:{proxy.port}/d"
        with pytest.raises(ValueError, match="does not name port 2000"):
            proxy.redirect("x://127.0.0.1:20001/d")


def test_a_commit_whose_answer_is_lost_is_still_committed(postgres_url: str, postgres_server: PostgresServer) -> None:
    database = postgres_url.rsplit("/", 1)[1]
    with FaultProxy(postgres_server.port) as proxy:
        connection = psycopg.connect(proxy.redirect(postgres_server.dsn(database)))
        connection.execute("CREATE TABLE kept (word text)")
        dropped = proxy.drop_next_answer(containing=b"COMMIT")
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
        assert dropped.wait(5)
        connection.close()
    with psycopg.connect(postgres_server.dsn(database)) as witness:
        assert witness.execute("SELECT count(*) FROM kept").fetchone() == (0,)


def test_a_put_whose_answer_is_lost_is_still_stored(s3_server: S3Server, s3_bucket: str) -> None:
    with FaultProxy(s3_server.port) as proxy:
        dropped = proxy.drop_next_answer(containing=b"PUT ")
        connection = http.client.HTTPConnection(HOST, proxy.port, timeout=10)
        connection.request("PUT", f"/{s3_bucket}/state", b"kept", {"Expect": "100-continue"})
        with pytest.raises((ConnectionResetError, http.client.RemoteDisconnected)):
            connection.getresponse()
        assert dropped.wait(5)
        connection.close()
    client = s3_server.client()
    assert client.get_object(Bucket=s3_bucket, Key="state")["Body"].read() == b"kept"
    client.close()
