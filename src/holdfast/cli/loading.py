"""Finding the application a command works on: ``module:attribute``, imported from the current directory."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType

from ..app import Holdfast
from ..core.errors import DbError
from .exits import CommandError, ExitCode, described

_PACKAGE = Path(__file__).resolve().parents[1]


def load_app(reference: str | None) -> Holdfast:
    """Return the application named ``module:attribute``.

    Raises:
        CommandError: the reference is incomplete, or there is no such module, attribute or application; one sentence.
    """
    if not reference:
        raise _wrong("Which application? Name it as module:attribute, such as app:hf, or set HOLDFAST_APP.")
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise _wrong(f"'{reference}' does not name an application. Write module:attribute, such as app:hf.")
    if module_name.endswith(".py") or "/" in module_name or "\\" in module_name:
        stem = Path(module_name.replace("\\", "/")).stem
        raise _wrong(
            f"'{module_name}' is the path of a file, and a module is wanted. Change to its directory and write "
            f"{stem}:{attribute}."
        )
    return _application(_imported(module_name), attribute, reference)


def _imported(module_name: str) -> ModuleType:
    directory = os.getcwd()
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise _wrong(
                f"There is no module '{error.name}' in {directory} or on the Python path. Run the command where the "
                "application's module is, or set PYTHONPATH."
            ) from error
        raise _import_failed(module_name, error) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(module_name, error) from error


def _application(module: ModuleType, attribute: str, reference: str) -> Holdfast:
    found: object = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise _wrong(
                f"Module '{module.__name__}' ({_shown(module.__file__)}) has no '{attribute}'.{_suggestion(module)}"
            )
        found = getattr(found, name)
    if not isinstance(found, Holdfast):
        raise _wrong(
            f"'{reference}' is of type {type(found).__name__}, not a Holdfast application.{_suggestion(module)}"
        )
    return found


def _suggestion(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, Holdfast)]
    found = " or ".join(f"{module.__name__}:{name}" for name in names)
    return f" Use {found}." if found else " Make one there with hf = Holdfast(…)."


def _import_failed(module_name: str, error: BaseException) -> CommandError:
    """Say where in the user's own code the import failed; an error of ours already says what to do."""
    reason = str(error) if isinstance(error, DbError) else described(error)
    return _wrong(f"Importing '{module_name}' failed at {_place(error)}: {reason}")


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(error.filename)}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_installed(frame.filename)] or list(frames)
    return f"{_shown(own[-1].filename)}, line {own[-1].lineno}"


def _is_installed(filename: str) -> bool:
    if filename.startswith("<"):
        return True
    paths = sysconfig.get_paths()
    installed = [_PACKAGE, *(Path(paths[kind]) for kind in ("stdlib", "platstdlib", "purelib", "platlib"))]
    return any(Path(filename).is_relative_to(directory) for directory in installed)


def _shown(filename: str | None) -> str:
    if filename is None:
        return "no file"
    path = Path(filename)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _wrong(message: str) -> CommandError:
    return CommandError(message, ExitCode.WRONG_CONFIGURATION)
