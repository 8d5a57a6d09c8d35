"""Processes that fork after they have talked to their database: each child talks for itself alone."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from tests.components.ports import HOST, free_ports
from tests.components.processes import REPOSITORY, start_leashed, wait_until

ORDERS = 120
CHILDREN = 2

MULTIPROCESSING = """
import multiprocessing
from tests.database.preloaded_app import TakenBackError, place

def work(numbers):
    for number in numbers:
        try:
            place(number)
        except TakenBackError:
            pass

if __name__ == "__main__":
    forking = multiprocessing.get_context("fork")
    children = [forking.Process(target=work, args=(range(first * 60, first * 60 + 60),)) for first in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0, 0], [child.exitcode for child in children]
"""

BORROWED = """
import os, sys
from sqlalchemy import text
from tests.database.preloaded_app import hf, pack

with hf.database.connect() as connection:
    connection.execute(text("INSERT INTO orders (id) VALUES (1)"))
    child = os.fork()
    if child == 0:
        refusals = 0
        for use in (
            lambda: connection.execute(text("INSERT INTO orders (id) VALUES (2)")),
            lambda: pack.enqueue(order_id=2, connection=connection),
            lambda: hf.outbox.append(connection, "OrderPlaced", {}, message_id="2"),
            lambda: connection.commit(),
        ):
            try:
                use()
            except Exception as error:
                refusals += "borrowed before the process forked" in str(error)
                print(error, file=sys.stderr)
        os._exit(refusals)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    connection.commit()
"""


@pytest.fixture(
    params=[
        pytest.param("postgres_url", marks=pytest.mark.component("postgres18")),
        pytest.param("mariadb_url", marks=pytest.mark.component("mariadb")),
        "sqlite_url",
    ]
)
def shop_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(request.param)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER NOT NULL PRIMARY KEY)"))
    engine.dispose()
    return url


def in_tables(url: str) -> tuple[set[int], set[int], int]:
    """Return the orders, the orders that messages are about, and how many jobs there are."""
    engine = create_engine(url)
    with engine.connect() as connection:
        orders = set(connection.execute(text("SELECT id FROM orders")).scalars())
        messages = set(connection.execute(text("SELECT message_id FROM holdfast_outbox")).scalars())
        jobs = connection.execute(text("SELECT count(*) FROM holdfast_jobs")).scalar_one()
    engine.dispose()
    return orders, {int(each) for each in messages}, jobs


def ran(script: str, url: str) -> str:
    command = [sys.executable, "-W", "error", "-c", script]
    environment = {**os.environ, "SHOP_URL": url}
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_what_forked_children_commit_is_kept_and_what_they_undo_is_not(shop_url: str) -> None:
    ran(MULTIPROCESSING, shop_url)
    kept = set(range(0, ORDERS, 2))
    assert in_tables(shop_url) == (kept, kept, len(kept))


@pytest.fixture
def web_shop(shop_url: str, tmp_path: Path) -> Iterator[str]:
    """The shop behind gunicorn, loaded before its workers are forked; yields its address."""
    [port] = free_ports(1)
    server = start_leashed(
        [
            *(sys.executable, "-m", "gunicorn", "--preload", "--no-control-socket", "--workers", str(CHILDREN)),
            *("--bind", f"{HOST}:{port}", "tests.database.preloaded_app:application"),
        ],
        tmp_path / "log",
        environment={"SHOP_URL": shop_url},
    )
    address = f"http://{HOST}:{port}"
    try:
        wait_until(lambda: "Booting worker" in (tmp_path / "log").read_text(), "gunicorn's workers", 60)
        yield address
    finally:
        server.terminate()
        server.wait(30)


def placed(address: str, number: int) -> tuple[int, str]:
    """Return the status of the answer, and which process says to have placed which order."""
    try:
        with urllib.request.urlopen(f"{address}/{number}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_workers_of_a_preloaded_application_talk_for_themselves(shop_url: str, web_shop: str) -> None:
    with ThreadPoolExecutor(2 * CHILDREN) as customers:
        answers = list(customers.map(lambda number: placed(web_shop, number), range(ORDERS)))
    assert [status for status, _ in answers] == [409 if number % 2 else 201 for number in range(ORDERS)]
    assert [int(said.split()[0]) for _, said in answers] == list(range(ORDERS))
    assert len({said.split()[1] for _, said in answers}) == CHILDREN
    kept = set(range(0, ORDERS, 2))
    assert in_tables(shop_url) == (kept, kept, len(kept))


def test_a_connection_that_was_borrowed_before_the_fork_is_refused_in_the_child(shop_url: str) -> None:
    assert ran(BORROWED, shop_url).strip() == "4"
    assert in_tables(shop_url) == ({1}, set(), 0)
