"""Where npm put the servers that are Node programs, and how to see that one answers HTTP."""

import contextlib
import http.client
import shutil
from pathlib import Path

from tests.components.ports import HOST
from tests.components.processes import REPOSITORY

COMPONENTS = REPOSITORY / ".components"
CHOSEN_NODE = COMPONENTS / "bin" / "node"
MODULES = COMPONENTS / "node" / "node_modules"
AZURITE = MODULES / "azurite" / "dist" / "src" / "azurite.js"
GRPC = MODULES / "@grpc" / "grpc-js" / "build" / "src" / "index.js"
COSMOS = MODULES / "@vercel" / "cosmosdb-server" / "lib" / "cli.js"


def find_node() -> Path | None:
    """Return the Node.js that tools/components.sh chose, else the one on PATH, else None."""
    node = shutil.which(CHOSEN_NODE) or shutil.which("node")
    return None if node is None else Path(node)


def node_command(script: Path, *arguments: str) -> list[str]:
    """Return the command line that runs `script`, without npm's wrapper so that the process is the server."""
    node = find_node()
    if node is None:
        raise FileNotFoundError("node is not installed")
    return [str(node), str(script), *arguments]


def answers_http(port: int) -> bool:
    """Return whether something on `port` answers an HTTP request, with whatever status."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/")
        connection.getresponse().read()
        return True
    return False
