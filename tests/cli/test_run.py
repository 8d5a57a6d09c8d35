"""`holdfast run`: what it prints, how it drains, and what it leaves behind."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

from holdfast.core.clock import SystemClock
from holdfast.core.signals import StopSignals
from tests.cli.forked import PATIENCE_SECONDS
from tests.cli.shop import EVERY_MIGRATION, ORDERS, Shop, assert_one_sentence
from tests.cli.workers import end, running, two_running
from tests.components.processes import wait_until

SLOW_APP = """
import threading
from pathlib import Path

from sqlalchemy import text

from holdfast import Holdfast

hf = Holdfast()

@hf.trigger("orders", cursor="updated_at", key="id", batch_size=1, poll_seconds=0.05)
def ship(changes, context):
    Path("started").touch()
    while not Path("go").exists():
        threading.Event().wait(0.01)
    context.transaction.execute(text("INSERT INTO shipped VALUES (:id)"), {"id": changes[0].after["id"]})
"""
TWO_TRIGGERS_APP = """
from sqlalchemy import text

from holdfast import Holdfast

hf = Holdfast()

@hf.trigger("orders", cursor="updated_at", key="id", poll_seconds=0.05)
def ship(changes, context):
    for change in changes:
        context.transaction.execute(text("INSERT INTO shipped VALUES (:id)"), {"id": change.after["id"]})

@hf.trigger("customers", cursor="id", poll_seconds=0.05)
async def greet(changes, context):
    for change in changes:
        await context.transaction.execute(text("INSERT INTO greeted VALUES (:id)"), {"id": change.after["id"]})
"""
FAILING_APP = """
from holdfast import Holdfast

hf = Holdfast()

@hf.trigger("orders", cursor="updated_at", key="id", poll_seconds=0.05)
def ship(changes):
    raise LookupError("no such shelf")
"""

HALF_WRONG_APP = """
from holdfast import Holdfast

hf = Holdfast()

@hf.trigger("invoices", cursor="id", key="id", horizon="none", poll_seconds=0.05)
def bill(changes):
    pass

@hf.job(topic="mail", name="mail")
def mail():
    pass
"""


def slow_shop(shop: Shop, *items: str) -> Path:
    shop.write_app(SLOW_APP)
    shop.sql(ORDERS + "CREATE TABLE shipped (id INTEGER NOT NULL);")
    shop.place(*items)
    return shop.directory


def test_sigterm_lets_the_handler_in_progress_finish_and_commits_it(shop: Shop) -> None:
    directory = slow_shop(shop, "book", "pen", "lamp")
    with running(shop, "--migrate", "-v") as worker:
        wait_until((directory / "started").exists, "the handler to be called")
        worker.process.terminate()
        wait_until(lambda: "Stopping" in worker.output, "the signal to be noticed")
        assert shop.rows("SELECT id FROM shipped") == []
        assert worker.process.poll() is None
        (directory / "go").touch()
        assert worker.wait() == 0
        assert "Stopped: every handler finished" in worker.output
    assert shop.rows("SELECT id FROM shipped") == [(1,)]
    assert shop.state()["checkpoint"]["cursor"]["tiebreaker"] == {"id": 1}
    assert shop.state()["lease"]["owner_id"] is None


def test_handler_that_does_not_finish_in_time_ends_with_1_and_commits_nothing(shop: Shop) -> None:
    directory = slow_shop(shop, "book")
    with running(shop, "--migrate", "--drain-seconds", "0.1") as worker:
        wait_until((directory / "started").exists, "the handler to be called")
        worker.process.terminate()
        assert worker.wait() == 1
        assert worker.output.splitlines()[-1].startswith("Error: A handler did not finish within 0.1 s")
        assert "Traceback" not in worker.output
    assert shop.rows("SELECT id FROM shipped") == []
    assert shop.state()["checkpoint"] == {}
    assert shop.state()["lease"]["owner_id"] is None


def test_several_triggers_run_in_one_process_and_say_so(shop: Shop) -> None:
    shop.write_app(TWO_TRIGGERS_APP)
    shop.sql(ORDERS)
    shop.sql("CREATE TABLE customers (id INTEGER PRIMARY KEY AUTOINCREMENT)")
    shop.sql("CREATE TABLE shipped (id INTEGER); CREATE TABLE greeted (id INTEGER);")
    shop.place("book", "pen")
    shop.sql("INSERT INTO customers DEFAULT VALUES")
    with running(shop, "--migrate", "-v") as worker:
        wait_until(lambda: shop.rows("SELECT id FROM shipped ORDER BY 1") == [(1,), (2,)], "the orders to be shipped")
        wait_until(lambda: shop.rows("SELECT id FROM greeted") == [(1,)], "the customer to be greeted")
        worker.process.send_signal(signal.SIGINT)
        assert worker.wait() == 0
        lines = worker.output.splitlines()
    told = [line for line in lines if " holdfast.trigger: Updates of " not in line]
    assert told[:4] == [
        f"Applied: {', '.join(EVERY_MIGRATION)}",
        "Trigger orders: reads orders (sqlalchemy), horizon server_time, updates not proved",
        "Trigger customers: reads customers (sqlalchemy), horizon identity, updates inserts only",
        f"Running in process {worker.process.pid}. Stop with SIGTERM or Ctrl-C.",
    ]
    assert any("WARNING holdfast.trigger: Updates of 'orders' are not proved" in line for line in lines)
    assert any("INFO holdfast.trigger: Updates of 'customers' are inserts only" in line for line in lines)
    assert any("INFO holdfast.trigger: Trigger 'orders' delivered 2 events" in line for line in lines)


def test_failing_handler_is_logged_with_its_own_traceback_and_the_worker_goes_on(shop: Shop) -> None:
    shop.write_app(FAILING_APP)
    shop.sql(ORDERS)
    shop.place("book")
    with running(shop, "--migrate") as worker:
        wait_until(lambda: worker.output.count("no such shelf") >= 4, "two deliveries to fail")
        worker.process.terminate()
        assert worker.wait() == 0
        output = worker.output
    assert 'app.py", line 8, in ship' in output
    assert "ERROR holdfast.trigger: Trigger 'orders' did not complete batch" in output
    assert "holdfast/trigger/runner.py" not in output


def test_logging_that_the_application_set_up_itself_is_left_alone(shop: Shop) -> None:
    directory = slow_shop(shop, "book")
    shop.write_app("import logging\nlogging.basicConfig(format='MINE %(message)s', level='INFO')\n" + SLOW_APP)
    with running(shop, "--migrate") as worker:
        (directory / "go").touch()
        wait_until(lambda: "MINE Trigger 'orders' delivered 1 events" in worker.output, "the delivery to be logged")
        worker.process.terminate()
        assert worker.wait() == 0
        assert "holdfast.trigger:" not in worker.output


LIBRARY = """
import logging

def call():
    for name in ("azure.core", "holdfast.engines.durabletask.worker"):
        logging.getLogger(name).info("a line of %s", name)
        logging.getLogger(name).warning("a warning of %s", name)
"""
CHATTY_APP = """
import logging

import library
from holdfast import Holdfast

hf = Holdfast()

@hf.engine("hmac", schedule="* * * * *")
def rotate(context, message):
    library.call()
    logging.getLogger("shop").info("rotated")
"""


def test_verbose_tells_of_holdfast_and_the_application_and_not_of_libraries(shop: Shop) -> None:
    installed = shop.directory / "site-packages"
    installed.mkdir()
    (installed / "library.py").write_text(LIBRARY)
    shop.write_app(f"import sys\nsys.path.append({str(installed)!r})\n" + CHATTY_APP)
    assert shop.cli("migrate").returncode == 0
    assert shop.cli("engine", "send", "hmac").returncode == 0
    with running(shop, "-v") as worker:
        wait_until(lambda: "INFO shop: rotated" in worker.output, "the application's own line")
        wait_until(lambda: "INFO holdfast." in worker.output, "a line of Holdfast")
        worker.process.terminate()
        assert worker.wait() == 0
        output = worker.output
    for name in ("azure.core", "holdfast.engines.durabletask.worker"):
        assert f"a warning of {name}" in output
        assert f"a line of {name}" not in output


def test_worker_that_is_standing_by_ends_at_once(shop: Shop) -> None:
    hf = shop.deliver("book")
    hf.state.acquire("orders", ttl_seconds=600)
    with running(shop, "-vv") as worker:
        wait_until(lambda: "is held by" in worker.output, "the worker to find the lease held")
        worker.process.terminate()
        assert worker.wait() == 0


def test_output_can_be_read_line_by_line_through_a_pipe(shop: Shop) -> None:
    shop.deliver("book")
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "run", "app:hf"],
        cwd=shop.directory,
        env=shop.environment({"HOLDFAST_APP": ""}),
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Trigger orders: reads orders")
        process.kill()


def test_signal_in_the_middle_of_the_wait_for_it_does_not_hang() -> None:
    event = threading.Event()
    with StopSignals(event, SystemClock()):
        with event._cond:  # type: ignore[attr-defined]  # what the main thread holds inside event.wait()
            signal.raise_signal(signal.SIGTERM)
        assert event.wait(PATIENCE_SECONDS)


def test_a_wrong_trigger_stops_alone_in_every_worker_and_the_commands_say_why(shop: Shop) -> None:
    shop.write_app(HALF_WRONG_APP)
    assert shop.cli("migrate").returncode == 0
    job = shop.holdfast().job(topic="mail", name="mail")(lambda: None)
    with two_running(shop, log="output") as workers:
        job.enqueue()
        ended = "SELECT count(*) FROM holdfast_history WHERE engine = 'jobs:mail'"
        wait_until(lambda: shop.rows(ended) == [(1,)], "the job")
        end(*workers)
        for each in workers:
            assert "Trigger invoices: does not run until this is mended: Table 'invoices' not found" in each.output
            assert each.output.count("does not run until that is mended") == 1
    assert "Trigger 'invoices' does not run: Table 'invoices' not found" in shop.cli("trigger", "list").stdout
    assert_one_sentence(shop.cli("run", "--strict"), 2, "Table 'invoices' not found")
