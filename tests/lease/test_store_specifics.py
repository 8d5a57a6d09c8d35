"""What one store promises beyond the port: how it is opened, its limits, and what it says when it cannot work."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import boto3
import pytest
from azure.cosmos import ContainerProxy
from azure.data.tables import TableClient, UpdateMode
from azure.storage.blob import ContainerClient
from botocore.config import Config

from holdfast.core.errors import ConfigurationError, Conflict, StateStoreError, Unavailable, UnreadableStateError
from holdfast.lease.documents import DocumentStore
from holdfast.lease.stores._names import checked_document_name, decoded_name, encoded_name
from holdfast.lease.stores.blob import BlobDocumentStore
from holdfast.lease.stores.cosmos import CosmosDocumentStore
from holdfast.lease.stores.memory import MemoryDocumentStore
from holdfast.lease.stores.s3 import S3DocumentStore
from holdfast.lease.stores.table import TableDocumentStore
from tests.components.azurite import AzuriteServer
from tests.components.cosmos import CosmosServer
from tests.components.ports import free_port
from tests.components.processes import REPOSITORY
from tests.components.s3 import CREDENTIALS, S3Server

NAME = "state/app/orders.json"
ONCE = Config(retries={"total_max_attempts": 1})


@pytest.fixture
def cleanup() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.mark.component("azurite")
@pytest.mark.parametrize(
    ("kind", "place"), [(BlobDocumentStore, "db-state-{}"), (TableDocumentStore, "holdfaststate{}")]
)
def test_a_connection_string_opens_and_if_need_be_creates_the_place(
    azurite: AzuriteServer,
    cleanup: contextlib.ExitStack,
    kind: type[BlobDocumentStore] | type[TableDocumentStore],
    place: str,
) -> None:
    where = place.format(os.urandom(8).hex())
    first = kind.from_connection_string(azurite.connection_string, where)
    cleanup.callback(first.close)
    first.create(NAME, b"{}")
    second = kind.from_connection_string(azurite.connection_string, where)
    cleanup.callback(second.close)
    assert list(second.list("")) == [NAME]


# azure-data-tables asks an XML element for its truth when a refusal comes as XML; Python 3.12 warns about that.
@pytest.mark.filterwarnings("ignore:Testing an element's truth value:DeprecationWarning")
@pytest.mark.component("azurite")
@pytest.mark.parametrize("kind", [BlobDocumentStore, TableDocumentStore])
def test_a_connection_string_that_cannot_work_is_told_apart(
    azurite: AzuriteServer, kind: type[BlobDocumentStore] | type[TableDocumentStore]
) -> None:
    wrong_key = azurite.connection_string.replace("AccountKey=Eby8", "AccountKey=AAAA")
    with pytest.raises(StateStoreError, match=r"Opening .* was refused \(403") as refused:
        kind.from_connection_string(wrong_key)
    assert refused.type is StateStoreError
    away = azurite.connection_string
    for port in azurite.ports:
        away = away.replace(f":{port}", f":{free_port()}")
    with pytest.raises(Unavailable):
        kind.from_connection_string(away)


def _without_place(kind: str, request: pytest.FixtureRequest, cleanup: contextlib.ExitStack) -> DocumentStore:
    """Return a store whose container, table or bucket does not exist."""
    if kind == "s3":
        s3: S3Server = request.getfixturevalue("s3_server")
        bucket = S3DocumentStore.from_bucket("missing", endpoint_url=s3.endpoint_url, **CREDENTIALS)
        cleanup.callback(bucket.close)
        return bucket
    if kind == "cosmos":
        cosmos: CosmosServer = request.getfixturevalue("cosmos_server")
        database, _ = cosmos.create_container()
        client = cleanup.enter_context(cosmos.client())
        return CosmosDocumentStore(client.get_database_client(database).get_container_client("missing"))
    azurite: AzuriteServer = request.getfixturevalue("azurite")
    if kind == "blob":
        container = ContainerClient.from_connection_string(azurite.connection_string, "missing")
        cleanup.callback(container.close)
        return BlobDocumentStore(container)
    table = TableClient.from_connection_string(azurite.connection_string, "missing")
    cleanup.callback(table.close)
    return TableDocumentStore(table)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("blob", marks=pytest.mark.component("azurite")),
        pytest.param("table", marks=pytest.mark.component("azurite")),
        pytest.param("s3", marks=pytest.mark.component("s3")),
        pytest.param("cosmos", marks=pytest.mark.component("cosmos")),
    ],
)
def test_a_missing_place_is_not_taken_for_a_missing_document(
    kind: str, request: pytest.FixtureRequest, cleanup: contextlib.ExitStack
) -> None:
    """A poller that took a mistyped container for an empty one would start from the beginning."""
    store = _without_place(kind, request, cleanup)
    calls: list[Callable[[], object]] = [
        lambda: store.read(NAME),
        lambda: store.create(NAME, b"{}"),
        lambda: list(store.list("")),
    ]
    for call in calls:
        with pytest.raises(StateStoreError, match=r"there is no .*'missing'.* Create it") as raised:
            call()
        assert raised.type is StateStoreError


@pytest.mark.component("azurite")
def test_a_blob_that_someone_leased_in_azure_is_no_conflict(
    azurite: AzuriteServer, azurite_container: str, cleanup: contextlib.ExitStack
) -> None:
    """Reading again would not help: the holder of the Azure lease must let go."""
    container = ContainerClient.from_connection_string(azurite.connection_string, azurite_container)
    cleanup.callback(container.close)
    store = BlobDocumentStore(container)
    etag = store.create(NAME, b"1").etag
    lease = container.get_blob_client(NAME).acquire_lease(lease_duration=-1)
    with pytest.raises(StateStoreError, match="LeaseIdMissing") as raised:
        store.replace(NAME, b"2", etag)
    assert raised.type is StateStoreError
    lease.release()
    store.replace(NAME, b"2", etag)


@pytest.mark.component("azurite")
def test_a_table_document_may_have_900_kib_and_not_a_byte_more(
    azurite: AzuriteServer, azurite_table: str, cleanup: contextlib.ExitStack
) -> None:
    table = TableClient.from_connection_string(azurite.connection_string, azurite_table)
    cleanup.callback(table.close)
    store = TableDocumentStore(table)
    largest = os.urandom(900 * 1024)
    etag = store.create(NAME, largest).etag
    with pytest.raises(StateStoreError, match=r"921601 bytes.* 921600"):
        store.replace(NAME, largest + b"x", etag)
    with pytest.raises(StateStoreError, match=r"921601 bytes.* 921600"):
        store.create("state/app/other.json", largest + b"x")
    found = store.read(NAME)
    assert found is not None
    assert (found.content, found.etag) == (largest, etag)
    assert list(store.list("")) == [NAME]


@pytest.mark.component("azurite")
def test_a_table_entity_that_lost_a_part_is_not_read_as_a_shorter_document(
    azurite: AzuriteServer, azurite_table: str, cleanup: contextlib.ExitStack
) -> None:
    table = TableClient.from_connection_string(azurite.connection_string, azurite_table)
    cleanup.callback(table.close)
    store = TableDocumentStore(table)
    store.create(NAME, os.urandom(100 * 1024))
    entity = table.get_entity(encoded_name(NAME), "document")
    del entity["content01"]
    table.update_entity(entity, mode=UpdateMode.REPLACE)
    with pytest.raises(UnreadableStateError, match="do not add up"):
        store.read(NAME)


@pytest.mark.component("azurite")
def test_a_name_too_long_for_a_table_key_is_refused(
    azurite: AzuriteServer, azurite_table: str, cleanup: contextlib.ExitStack
) -> None:
    table = TableClient.from_connection_string(azurite.connection_string, azurite_table)
    cleanup.callback(table.close)
    with pytest.raises(ConfigurationError, match="513 characters"):
        TableDocumentStore(table).create("é" * 85 + "xxx", b"{}")


@pytest.mark.component("s3")
def test_an_s3_client_that_retries_is_refused(s3_server: S3Server, s3_bucket: str) -> None:
    for config in (None, Config(retries={"max_attempts": 1}), Config(retries={"mode": "standard"})):
        client = boto3.client("s3", endpoint_url=s3_server.endpoint_url, config=config, **CREDENTIALS)
        with contextlib.closing(client), pytest.raises(ConfigurationError, match="total_max_attempts"):
            S3DocumentStore(client, s3_bucket)


@pytest.mark.component("s3")
@pytest.mark.parametrize("config", [ONCE, Config(retries={"max_attempts": 0})])
def test_an_s3_client_of_ones_own_that_does_not_retry_is_welcome(
    s3_server: S3Server, s3_bucket: str, config: Config
) -> None:
    client = boto3.client("s3", endpoint_url=s3_server.endpoint_url, config=config, **CREDENTIALS)
    with contextlib.closing(client):
        S3DocumentStore(client, s3_bucket, "here/").create(NAME, b"{}")
        assert [entry["Key"] for entry in client.list_objects_v2(Bucket=s3_bucket)["Contents"]] == [f"here/{NAME}"]
        assert list(S3DocumentStore(client, s3_bucket, "there/").list("")) == []


@pytest.mark.component("s3")
def test_from_bucket_keeps_a_given_config_but_never_its_retries(s3_server: S3Server, s3_bucket: str) -> None:
    config = Config(retries={"max_attempts": 7, "mode": "adaptive"}, read_timeout=3)
    store = S3DocumentStore.from_bucket(s3_bucket, endpoint_url=s3_server.endpoint_url, config=config, **CREDENTIALS)
    with contextlib.closing(store):
        assert store.read(NAME) is None


@pytest.mark.component("cosmos")
def test_a_cosmos_container_may_have_another_partition_key(
    cosmos_server: CosmosServer, cleanup: contextlib.ExitStack
) -> None:
    database, container = cosmos_server.create_container("/app")
    client = cleanup.enter_context(cosmos_server.client())
    proxy = client.get_database_client(database).get_container_client(container)
    store = CosmosDocumentStore(proxy, partition_key_path="/app")
    etag = store.create(NAME, b"1").etag
    etag = store.replace(NAME, b"2", etag).etag
    found = store.read(NAME)
    assert found is not None
    assert found.content == b"2"
    with pytest.raises(Conflict):
        store.create(NAME, b"3")
    store.delete(NAME, etag)
    assert list(store.list("")) == []


@pytest.mark.component("cosmos")
@pytest.mark.parametrize("path", ["id", "/", "", "/a/b"])
def test_a_partition_key_path_must_have_one_level(
    cosmos_server: CosmosServer, cleanup: contextlib.ExitStack, path: str
) -> None:
    client = cleanup.enter_context(cosmos_server.client())
    proxy: ContainerProxy = client.get_database_client("d").get_container_client("c")
    with pytest.raises(ConfigurationError, match="partition key path"):
        CosmosDocumentStore(proxy, partition_key_path=path)


BAD_NAMES = ["", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a.", "a./b", "a\\b", "a\x00b", "a\nb"]


@pytest.mark.parametrize("name", [*BAD_NAMES, "a ", "a /b", "\ud800", "é" * 451])
def test_a_name_that_some_store_would_bend_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="document name"):
        checked_document_name(name)


@pytest.mark.parametrize("name", ["state/app/é 日.json", "=2F", "a=b", "%2F", "~", "\N{GRINNING FACE}", "A", "a"])
def test_an_encoded_name_decodes_to_itself_and_is_safe_everywhere(name: str) -> None:
    encoded = encoded_name(name)
    assert decoded_name(encoded) == name
    assert set(encoded) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-=")


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("blob", "azure.storage.blob", "azure"),
        ("blob", "azure.core", "azure"),
        ("table", "azure.data.tables", "azure"),
        ("cosmos", "azure.cosmos", "cosmos"),
        ("s3", "boto3", "s3"),
    ],
)
def test_a_missing_sdk_is_named_with_the_extra_to_install(module: str, package: str, extra: str) -> None:
    code = f"""
import sys
sys.modules[{package!r}] = None
import holdfast.lease.store
from holdfast.core.errors import MissingDependencyError
try:
    import holdfast.lease.stores.{module}
except MissingDependencyError as error:
    print(error)
"""
    path = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True, check=True)
    assert f"pip install 'holdfast[{extra}]'" in done.stdout
    assert done.stdout.count("\n") == 1


def test_stores_without_a_server_load_no_sdk() -> None:
    code = """
import sys
import holdfast.lease.stores.memory, holdfast.lease.stores.file
print(sorted(name for name in sys.modules if name.split(".")[0] in ("azure", "boto3", "botocore")))
"""
    path = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_memory_store_takes_its_time_from_the_clock_it_is_given() -> None:
    from datetime import UTC, datetime

    moment = datetime(2026, 4, 7, 1, 23, 45, tzinfo=UTC)
    store = MemoryDocumentStore(lambda: moment)
    assert store.create(NAME, b"{}").store_time == moment
    found = store.read(NAME)
    assert found is not None
    assert found.store_time == moment
