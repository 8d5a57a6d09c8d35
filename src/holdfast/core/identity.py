"""Which application this is, when nobody has named it: the top-level package of the code that makes a ``Holdfast``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

_SCRIPTS = ("__main__", "__mp_main__")  # the second is what multiprocessing calls the first in its children
_OWN = __name__.partition(".")[0]


def application_identity(app_name: str | None) -> str:
    """Return the application's name, else its Functions site, else the top-level package of whoever calls Holdfast."""
    return app_name or os.environ.get("WEBSITE_SITE_NAME") or package_of(_calling_module())


def package_of(module: Mapping[str, object]) -> str:
    """Return the top-level package of a module, given its globals; the same however the module was started."""
    name = str(module.get("__name__") or "__main__")
    if name in _SCRIPTS:  # python -m shop.app says in its spec what it is
        name = getattr(module.get("__spec__"), "name", None) or "__main__"
    file = module.get("__file__")
    if "." in name or "__path__" in module or not file:  # without a file: a notebook, or python -c
        return name.partition(".")[0]
    return _package_of_file(Path(os.path.abspath(str(file))))


def _package_of_file(path: Path) -> str:
    top = path.parent if path.stem == "__main__" else path
    while (top.parent / "__init__.py").exists() and top.parent.name.isidentifier():  # a release's folder is no package
        top = top.parent
    return top.stem


def _calling_module() -> Mapping[str, object]:
    frame: FrameType | None = sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _OWN:
        frame = frame.f_back
    return {} if frame is None else frame.f_globals
