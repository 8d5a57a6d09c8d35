"""Starts moto's server so that it answers one request at a time.

It looks at the condition of a write and then writes, and nothing keeps two threads apart. S3 does both in one step.
"""

import sys
import threading
from typing import Any

import moto.server
from moto.moto_server.werkzeug_app import DomainDispatcherApplication

_lock = threading.Lock()


class OneByOne(DomainDispatcherApplication):
    def __call__(self, environ: Any, start_response: Any) -> Any:
        with _lock:
            return super().__call__(environ, start_response)


if __name__ == "__main__":
    vars(moto.server)["DomainDispatcherApplication"] = OneByOne
    moto.server.main(sys.argv[1:])
