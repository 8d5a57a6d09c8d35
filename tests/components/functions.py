"""The worker library of Azure Functions, in an environment of its own because it needs Python 3.13 or newer.

The host itself cannot be had. What runs here is everything of the Python worker behind the host's messages: finding and
checking functions, binding arguments, running handlers on the worker's threads or loop, and packing the result.
"""

import os

from tests.components.node import COMPONENTS

ENVIRONMENT = COMPONENTS / "functions"
PYTHON = ENVIRONMENT / "bin" / "python"
INSTALLED = ENVIRONMENT / "installed.lock"


def has_environment() -> bool:
    """Return whether tools/components.sh made the environment and could install everything into it."""
    return os.access(PYTHON, os.X_OK) and INSTALLED.is_file()
