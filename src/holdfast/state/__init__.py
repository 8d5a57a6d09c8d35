"""The former name of ``holdfast.lease``: imports of it go on working for one release, with a warning."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_FORMER, _NAME = "holdfast.state", "holdfast.lease"


class _FormerName(MetaPathFinder, Loader):
    """Answers for the modules of the former package with those of the new one: each is loaded once, under two names."""

    def __init__(self) -> None:
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for a module of the former package, None for any other."""
        return ModuleSpec(fullname, self) if fullname.startswith(f"{_FORMER}.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module that has the new name."""
        inside = spec.name.removeprefix(_FORMER).replace(".lease", ".held_lease")
        module = importlib.import_module(_NAME + inside)
        self._specs[module.__name__] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave it as it is: it was loaded under its new name."""
        module.__spec__ = self._specs[module.__name__]


sys.meta_path.insert(0, _FormerName())
warnings.warn(f"'{_FORMER}' is called '{_NAME}' now. Import from there.", DeprecationWarning, stacklevel=2)
