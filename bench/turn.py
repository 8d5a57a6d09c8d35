"""One turn of work with whichever Holdfast is imported: how much CPU its worker takes for it, and how long it lasts.

Started by ``bench.earlier`` with the sources of one of two commits; it uses only names that both have.
"""

import sys
import threading
import time

from sqlalchemy import text

from holdfast import Holdfast

_INSERT = text("INSERT INTO effects VALUES (:n)")
_LEFT = text("SELECT EXISTS (SELECT FROM holdfast_jobs)")
_CONCURRENCY = 10


def main() -> None:
    url, kind, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    hf = Holdfast(url)

    @hf.job(topic="bench")
    def noop(n: int) -> None: ...

    @hf.job(topic="bench")
    def write(context, n: int) -> None:  # type: ignore[no-untyped-def] # its context has no public type in both
        context.transaction.execute(_INSERT, {"n": n})

    if kind == "engine":

        @hf.engine("bench", concurrency=_CONCURRENCY)
        def engine(context, message) -> None: ...  # type: ignore[no-untyped-def]

    hf.migrate()
    with hf.database.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS effects (n integer NOT NULL)"))
        if kind == "engine":
            for n in range(count):
                hf.engines.send("bench", n, connection=connection)
    if kind != "engine":
        (noop if kind == "no-op" else write).enqueue_many([{"n": n} for n in range(count)])
    with hf.database.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").execute(text("VACUUM ANALYZE holdfast_jobs"))
    print("ready", flush=True)
    sys.stdin.readline()
    started, began = time.process_time(), time.perf_counter()
    worker = threading.Thread(target=lambda: hf.run(concurrency=_CONCURRENCY, handle_signals=False))
    worker.start()
    pause = threading.Event()
    with hf.database.connect() as connection:
        looking = connection.execution_options(isolation_level="AUTOCOMMIT")
        while looking.execute(_LEFT).scalar_one():
            pause.wait(0.05)
    print(time.process_time() - started, time.perf_counter() - began, flush=True)
    sys.stdin.readline()
    hf.stop()
    worker.join()


if __name__ == "__main__":
    main()
