"""Issue 13, line 16: files that Holdfast creates are 0600, whatever the umask says; others keep their mode."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import holdfast
from holdfast import Holdfast
from holdfast.cli.demo.database import Shop
from holdfast.cli.demo.worker import Worker
from holdfast.cli.main import app as command_line
from holdfast.database.pools import autocommit
from holdfast.lease.stores.file import FileDocumentStore

SOURCE = Path(holdfast.__file__).parent
CREATES_A_FILE = re.compile(
    r"\.write_(text|bytes)\(|\.touch\(|\.open\(\s*[\"'][wax]|mkstemp|NamedTemporary|FileHandler"
)
OPENS_TO_WRITE = re.compile(r"(?<![.\w])open\([^\n]*[\"'][wax]b?\+?[\"'][^\n]*")


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """A umask that forbids nothing."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(directory: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.rglob("*") if path.is_file()}


def use_file_store(directory: Path) -> None:
    store = FileDocumentStore(directory)
    written = store.create("state/a", b"{}")
    store.replace("state/a", b"[]", written.etag)


def use_database(directory: Path) -> None:
    hf = Holdfast(f"sqlite:///{directory / 'shop.db'}")
    hf.migrate()
    with autocommit(hf.database) as connection:
        connection.exec_driver_sql("PRAGMA journal_mode = WAL").all()
        connection.exec_driver_sql("CREATE TABLE orders (id INTEGER)")
        assert {"shop.db", "shop.db-wal", "shop.db-shm"} <= modes(directory).keys()
        assert set(modes(directory).values()) == {0o600}


def use_demo(directory: Path) -> None:
    with Worker(Shop(directory / "shop.db").url, directory / "worker.log"):
        pass


@pytest.mark.parametrize("use", [use_file_store, use_database, use_demo])
def test_13_16_files_that_holdfast_creates_are_their_owners_alone(tmp_path: Path, use: Callable[[Path], None]) -> None:
    use(tmp_path)
    assert modes(tmp_path)
    assert set(modes(tmp_path).values()) == {0o600}


def test_13_16_of_a_starter_the_file_for_passwords_is_its_owners_alone(tmp_path: Path) -> None:
    assert CliRunner().invoke(command_line, ["new", "function-app", str(tmp_path)]).exit_code == 0
    private = {name for name, mode in modes(tmp_path).items() if mode == 0o600}
    assert private == {"local.settings.sample.json"}


def test_13_16_a_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    file.touch(0o640)
    Holdfast(f"sqlite:///{file}").migrate()
    assert modes(tmp_path)["shop.db"] == 0o640


def test_13_16_no_source_file_creates_files_in_another_way() -> None:
    others = [
        f"{path.relative_to(SOURCE)}: {found[0]}"
        for path in sorted(SOURCE.rglob("*.py"))
        for pattern in (CREATES_A_FILE, OPENS_TO_WRITE)
        for found in pattern.finditer(path.read_text())
        if "opener=" not in found[0]
    ]
    assert others == []
