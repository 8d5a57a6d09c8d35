"""The file store between processes: nothing torn, nothing lost, nothing outside its directory."""

import json
import os
from pathlib import Path

import pytest

from holdfast.core.errors import ConfigurationError, StateStoreError, Unavailable, UnreadableStateError
from holdfast.lease.documents import ETag
from holdfast.lease.stores.file import FileDocumentStore
from tests.components.processes import PythonWorker

NAME = "state/app/orders.json"
KILLS = 12
PROCESSES = 4
INCREMENTS = 50

WRITER = """
import json, sys
from holdfast.lease.stores.file import FileDocumentStore
store = FileDocumentStore(sys.argv[1])
found = store.read({name!r})
revision = json.loads(found.content)["revision"]
etag = found.etag
padding = b"x" * 1_500_000
while True:
    revision += 1
    content = b'{{"revision": %d, "padding": "%s"}}' % (revision, padding)
    etag = store.replace({name!r}, content, etag).etag
    print("wrote", revision)
"""

COUNTER = """
import json, sys
from holdfast.core.errors import Conflict
from holdfast.lease.stores.file import FileDocumentStore
store = FileDocumentStore(sys.argv[1])
done = 0
while done < {increments}:
    found = store.read({name!r})
    count = json.loads(found.content)["count"]
    try:
        store.replace({name!r}, json.dumps({{"count": count + 1}}).encode(), found.etag)
    except Conflict:
        continue
    done += 1
print("finished")
"""

HOLDER = """
import fcntl, signal, sys
from holdfast.lease.stores.file import FileDocumentStore
FileDocumentStore(sys.argv[1])
lock = open(sys.argv[1] + "/~lock")
fcntl.flock(lock, fcntl.LOCK_EX)
print("locked")
signal.pause()
"""

FULL_DISK = """
import resource, signal, sys
from holdfast.core.errors import Unavailable
from holdfast.lease.stores.file import FileDocumentStore
store = FileDocumentStore(sys.argv[1])
etag = store.read({name!r}).etag
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    store.replace({name!r}, b"x" * 100_000, etag)
except Unavailable as error:
    print("unavailable:", error)
store.replace({name!r}, b"fits", etag)
print("finished")
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state"


def _worker(code: str, directory: Path) -> PythonWorker:
    return PythonWorker("-c", code.format(name=NAME, increments=INCREMENTS), str(directory))


def _revision(store: FileDocumentStore) -> int:
    found = store.read(NAME)
    assert found is not None
    revision: int = json.loads(found.content)["revision"]
    return revision


def test_a_process_killed_in_mid_write_leaves_a_whole_document(directory: Path) -> None:
    store = FileDocumentStore(directory)
    store.create(NAME, b'{"revision": 0}')
    for _ in range(KILLS):
        before = _revision(store)
        with _worker(WRITER, directory) as writer:
            writer.wait_for_line(f"wrote {before + 1}")
            writer.kill()
            acknowledged = int(writer.lines[-1].split()[1])
        assert acknowledged <= _revision(store) <= acknowledged + 1
    assert list(store.list("")) == [NAME]
    assert len(list(directory.iterdir())) <= 3


def test_processes_that_count_together_lose_no_increment(directory: Path) -> None:
    store = FileDocumentStore(directory)
    store.create(NAME, b'{"count": 0}')
    workers = [_worker(COUNTER, directory) for _ in range(PROCESSES)]
    try:
        assert [worker.wait() for worker in workers] == [0] * PROCESSES
    finally:
        for worker in workers:
            worker.kill()
    found = store.read(NAME)
    assert found is not None
    assert json.loads(found.content) == {"count": PROCESSES * INCREMENTS}


def test_a_suspended_process_that_holds_the_lock_makes_the_store_unavailable(directory: Path) -> None:
    store = FileDocumentStore(directory, lock_timeout_seconds=0.2)
    etag = store.create(NAME, b"1").etag
    with _worker(HOLDER, directory) as holder:
        holder.wait_for_line("locked")
        holder.suspend()
        with pytest.raises(Unavailable, match="locked by another process"):
            store.replace(NAME, b"2", etag)
        with pytest.raises(Unavailable, match="locked by another process"):
            store.read(NAME)
    store.replace(NAME, b"2", etag)


def test_a_full_disk_changes_nothing_and_may_be_tried_again(directory: Path) -> None:
    store = FileDocumentStore(directory)
    store.create(NAME, b"old")
    with _worker(FULL_DISK, directory) as worker:
        worker.wait_for_line("unavailable: The document 'state/app/orders.json'")
        worker.wait_for_line("finished")
    found = store.read(NAME)
    assert found is not None
    assert found.content == b"fits"


@pytest.mark.parametrize("name", ["../outside", "a/../../outside", "/etc/outside", "..", "a/.."])
def test_no_name_leads_out_of_the_directory(directory: Path, name: str) -> None:
    store = FileDocumentStore(directory)
    with pytest.raises(ConfigurationError):
        store.create(name, b"{}")
    with pytest.raises(ConfigurationError):
        store.replace(name, b"{}", ETag("0"))
    assert sorted(path.name for path in directory.parent.iterdir()) == ["state"]
    assert [path.name for path in directory.iterdir()] == ["~lock"]


@pytest.mark.parametrize("name", ["~lock", "~writing", "~"])
def test_no_document_can_take_the_place_of_the_stores_own_files(directory: Path, name: str) -> None:
    store = FileDocumentStore(directory)
    etag = store.create(name, b"1").etag
    store.replace(name, b"2", etag)
    assert list(store.list("")) == [name]


def test_a_stray_file_is_no_document(directory: Path) -> None:
    store = FileDocumentStore(directory)
    store.create(NAME, b"{}")
    for stray in ("state=2Fapp=2Forders.json~", "a b", "=2f", "=FF", "\N{LATIN SMALL LETTER E WITH ACUTE}"):
        (directory / stray).write_text("stray")
    (directory / "folder").mkdir()
    assert list(store.list("state/")) == [NAME]


def test_a_damaged_file_is_told_apart_from_a_missing_document(directory: Path) -> None:
    store = FileDocumentStore(directory)
    etag = store.create(NAME, b"{}").etag
    path = directory / "state=2Fapp=2Forders.json"
    for damage in (b"", b"{}", b"no json\n{}", b'["etag"]\n{}'):
        path.write_bytes(damage)
        with pytest.raises(UnreadableStateError, match="not a Holdfast document"):
            store.read(NAME)
        with pytest.raises(UnreadableStateError):
            store.replace(NAME, b"new", etag)
        assert path.read_bytes() == damage


def test_a_file_system_that_ignores_case_cannot_mix_two_documents_up(directory: Path) -> None:
    """Shown by giving one document the file of another, which is what such a file system would do."""
    store = FileDocumentStore(directory)
    store.create("Orders", b"{}")
    (directory / "Orders").rename(directory / "orders")
    with pytest.raises(StateStoreError, match="upper from lower case"):
        store.read("orders")


def test_a_directory_that_cannot_be_made_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="state directory"):
        FileDocumentStore(tmp_path / "file" / "state")


def test_the_first_line_of_a_file_tells_its_document_and_the_rest_is_the_content(directory: Path) -> None:
    etag = FileDocumentStore(directory).create(NAME, b'{\n"revision": 1}').etag
    header, content = (directory / "state=2Fapp=2Forders.json").read_bytes().split(b"\n", 1)
    assert json.loads(header) == {"document": NAME, "etag": etag}
    assert content == b'{\n"revision": 1}'
    assert os.listdir(directory).count("~writing") == 0
