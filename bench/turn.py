"""One turn of jobs with whichever Holdfast is imported: how much CPU its worker takes for them.

Started by ``bench.against`` with the sources of one of two checkouts; it uses only names that both have.
"""

import sys
import threading
import time

from sqlalchemy import text

from holdfast import Holdfast

_INSERT = text("INSERT INTO effects VALUES (:n)")
_LEFT = text("SELECT EXISTS (SELECT FROM holdfast_jobs)")


def main() -> None:
    url, kind, jobs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    hf = Holdfast(url)
    hf.migrate()

    @hf.job(topic="bench")
    def noop(n: int) -> None: ...

    @hf.job(topic="bench")
    def write(context, n: int) -> None:  # type: ignore[no-untyped-def] # its context has no public type in both
        context.transaction.execute(_INSERT, {"n": n})

    with hf.database.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS effects (n integer NOT NULL)"))
    (noop if kind == "noop" else write).enqueue_many([{"n": n} for n in range(jobs)])
    with hf.database.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").execute(text("VACUUM ANALYZE holdfast_jobs"))
    print("ready", flush=True)
    sys.stdin.readline()
    started = time.process_time()
    worker = threading.Thread(target=lambda: hf.run(concurrency=10, handle_signals=False))
    worker.start()
    pause = threading.Event()
    with hf.database.connect() as connection:
        looking = connection.execution_options(isolation_level="AUTOCOMMIT")
        while looking.execute(_LEFT).scalar_one():
            pause.wait(0.05)
    print(time.process_time() - started, flush=True)
    sys.stdin.readline()
    hf.stop()
    worker.join()


if __name__ == "__main__":
    main()
