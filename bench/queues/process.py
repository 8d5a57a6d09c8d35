"""One working process: says that it is ready, waits for the word, works until the queue is empty, and ends."""

import importlib
import sys


def main() -> None:
    queue, dsn, name = sys.argv[1:]
    module = importlib.import_module(f"bench.queues.{queue}")
    print("ready", flush=True)
    sys.stdin.readline()
    module.work(dsn, name)
    print("done", flush=True)


if __name__ == "__main__":
    main()
