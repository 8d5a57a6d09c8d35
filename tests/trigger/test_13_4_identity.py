"""Two applications do not silently share a checkpoint [LEASE-4]: whoever is not the holder's application is refused."""

from __future__ import annotations

import contextlib
import importlib
import logging
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from holdfast import Holdfast, RowChange
from holdfast.core.errors import LeaseConflictError, OtherApplicationError
from holdfast.core.identity import application_identity, package_of
from holdfast.lease import document as doc
from holdfast.lease.store import StateStore
from holdfast.lease.stores.memory import MemoryDocumentStore
from tests.components.processes import REPOSITORY, wait_until
from tests.lease.stores_under_test import build
from tests.trigger.shop import Shop, order_ids

MODULE = "from holdfast import Holdfast\nhf = Holdfast({url!r})\nprint(hf._resources.application)\n"


def make(url: str, **settings: Any) -> Holdfast:
    return Holdfast(url, **settings)


class Service:
    """An application without a name, made by a module of a given package."""

    def __init__(self, shop: Shop, package: str, **settings: Any) -> None:
        made_there = FunctionType(make.__code__, {"__name__": f"{package}.app", "Holdfast": Holdfast})
        self.hf: Holdfast = made_there(shop.hf._config.connection_url, engine_provider=shop.hf._provider, **settings)
        self.got: list[int] = []
        self.hf.trigger("orders", cursor="updated_at", batch_size=5, max_batches_per_tick=1)(self.take)

    def take(self, changes: list[RowChange]) -> None:
        self.got += order_ids(changes)

    def tick(self) -> int:
        return self.hf.runner("orders").tick()

    def tick_until(self, count: int) -> None:
        wait_until(lambda: self.tick() == 0 and len(self.got) >= count, "rows below the horizon")


@pytest.fixture(params=["sqlite_url", "postgres_url", "mariadb_url", "file", "blob"])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[Shop, dict[str, Any]]]:
    """A shop whose checkpoints are in its database, in files or in blobs."""
    apart = request.param in ("file", "blob")
    shop = Shop(request.getfixturevalue("sqlite_url" if apart else request.param))
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(shop.close)
        yield shop, {"state": build(request.param, request, cleanup).open()} if apart else {}


def test_13_4_another_application_is_refused_while_the_first_is_at_work(
    place: tuple[Shop, dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    shop, settings = place
    shop.place(range(1, 6))
    first, second = Service(shop, "billing", **settings), Service(shop, "mailing", **settings)
    runner = first.hf.runner("orders")
    with runner.leased() as lease:
        wait_until(lambda: runner.process_batch(lease).caught_up and len(first.got) == 5, "the first five")
        shop.place(range(6, 11))
        with pytest.raises(OtherApplicationError, match=r"'billing'.*this is 'mailing'.*app_name="):
            second.tick()
    with caplog.at_level(logging.WARNING, "holdfast.state"):
        second.tick_until(5)
    assert (first.got, second.got) == ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10])
    assert "was run by the application 'billing' before; 'mailing' takes over" in caplog.text


def test_13_4_a_renamed_module_goes_on_once_the_old_one_has_stopped(shop: Shop) -> None:
    old, new = Service(shop, "shop"), Service(shop, "store")
    shop.place(range(1, 6))
    old.tick_until(5)
    shop.place(range(6, 11))
    new.tick_until(5)
    assert old.got + new.got == list(range(1, 11))


def test_13_4_two_slots_of_one_application_stand_by_for_each_other(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.place(range(1, 6))
    blue, green = Service(shop, "shop"), Service(shop, "shop")
    with caplog.at_level(logging.WARNING, "holdfast.state"):
        with blue.hf.runner("orders").leased():
            assert green.tick() == 0
        green.tick_until(5)
        assert blue.tick() == 0
    assert not [record for record in caplog.records if record.name == "holdfast.state"]


def test_13_4_slots_of_a_function_app_are_one_application(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBSITE_SITE_NAME", "my-site")
    assert application_identity(None) == "my-site"
    assert application_identity("named") == "named"


def test_13_4_names_keep_applications_apart(shop: Shop) -> None:
    shop.place(range(1, 6))
    first, second = Service(shop, "shop", app_name="a"), Service(shop, "shop", app_name="b")
    with first.hf.runner("orders").leased():
        second.tick_until(5)
    assert second.got == [1, 2, 3, 4, 5]


def test_13_4_a_worker_runs_everything_but_the_trigger_of_another_application(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.place([1])
    first, second = Service(shop, "billing"), Service(shop, "mailing")
    done: list[int] = []

    @second.hf.trigger("orders", cursor="updated_at", name="own")
    def own(changes: list[RowChange]) -> None:
        done.extend(order_ids(changes))

    worker = threading.Thread(target=second.hf.run)
    with first.hf.runner("orders").leased(), caplog.at_level(logging.ERROR, "holdfast.worker"):
        worker.start()
        try:
            wait_until(lambda: done and "Trigger 'orders' does not run" in caplog.text, "the refusal, and the rest")
            assert second.got == []
        finally:
            second.hf.stop()
            worker.join()
    assert done == [1]


def test_13_4_documents_without_an_application_are_the_first_comers() -> None:
    documents = MemoryDocumentStore()
    old = StateStore(documents, application="old")
    held = old.acquire("orders", ttl_seconds=30)
    held.release()
    [name] = documents.list("state/")
    document = old.document("orders")
    document.read()
    document.apply(lambda found, _: {k: v for k, v in found.items() if k != "application"} | {"revision": 9, "x": 1})
    new = StateStore(documents, application="new")
    new.acquire("orders", ttl_seconds=30)
    found = new.read("orders")
    assert found is not None
    assert name.endswith("orders.json")
    assert (doc.application_of(found.document), found.document["x"]) == ("new", 1)
    with pytest.raises(LeaseConflictError) as refused:
        new.acquire("orders", ttl_seconds=30)
    assert not isinstance(refused.value, OtherApplicationError)


@pytest.fixture
def imports() -> Iterator[None]:
    """Forgets what a test has imported."""
    before = set(sys.modules)
    yield
    for name in {"app", "shop", "shop.app", "single"} - before:
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("imports")
def test_13_4_an_application_is_the_same_however_it_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    for file in (package / "app.py", package / "__main__.py", tmp_path / "single.py"):
        file.write_text(MODULE.format(url=f"sqlite:///{tmp_path}/shop.db"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(package)
    runpy.run_path(str(package / "app.py"), run_name="__main__")  # python shop/app.py
    runpy.run_path(str(package), run_name="__main__")  # python shop
    runpy.run_module("shop.app", run_name="__main__")  # python -m shop.app
    runpy.run_module("shop", run_name="__main__")  # python -m shop
    importlib.import_module("shop.app")  # holdfast run shop.app:hf
    importlib.import_module("app")  # cd shop && holdfast run app:hf
    assert capsys.readouterr().out.split() == ["shop"] * 6
    runpy.run_path(str(tmp_path / "single.py"), run_name="__main__")
    importlib.import_module("single")
    assert capsys.readouterr().out.split() == ["single"] * 2


def test_13_4_folders_of_releases_are_not_packages(tmp_path: Path) -> None:
    for release in ("2026-11-17", "2026-11-18"):
        (tmp_path / release).mkdir()
        (tmp_path / release / "__init__.py").touch()
        module = {"__name__": "__main__", "__file__": str(tmp_path / release / "app.py")}
        assert package_of(module) == "app"


TICK = "from shop.app import hf; print(hf.runner('orders').tick())"
TICKED = """
from holdfast import Holdfast
hf = Holdfast({url!r})
hf.trigger("orders", cursor="updated_at", horizon_margin_seconds=0)(lambda changes: None)
"""


def started(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": f"{REPOSITORY / 'src'}:{folder}"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False, text=True)


def test_13_4_a_tick_from_the_command_line_is_of_its_application(sqlite_shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "app.py").write_text(TICKED.format(url=sqlite_shop.hf._config.connection_url))
    shop, other = Service(sqlite_shop, "shop"), Service(sqlite_shop, "billing")
    with shop.hf.runner("orders").leased():
        stands_by = started(tmp_path, "-c", TICK)
    assert (stands_by.stdout, stands_by.stderr) == ("0\n", "")
    with other.hf.runner("orders").leased():
        refused = started(tmp_path, "-c", TICK)
    assert "OtherApplicationError: Trigger 'orders' is run by the application 'billing'" in refused.stderr


def test_13_4_a_notebook_a_function_app_and_a_child_process_have_an_identity() -> None:
    assert package_of({"__name__": "__main__"}) == "__main__"
    assert package_of({"__name__": "function_app"}) == "function_app"
    assert package_of({"__name__": "__mp_main__", "__file__": "/srv/work.py"}) == "work"
    assert package_of(vars(importlib.import_module("tests.trigger.shop"))) == "tests"
