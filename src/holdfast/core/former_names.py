"""Former names of what is public: they go on working for one release, with a warning that says the present one."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping


def former_names(module: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a module, some of whose names (the keys) are called otherwise now."""

    def found(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn_of_former(f"'{module}.{name}'", names[name])
        return getattr(sys.modules[module], names[name])

    return found


def warn_of_former(former: str, name: str) -> None:
    """Say that something is used by its former name."""
    warnings.warn(
        f"{former} is called '{name}' now; the former name goes with the next release.", DeprecationWarning, 3
    )
