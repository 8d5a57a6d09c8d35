"""What a command's end means to a script: the exit codes, and which error leads to which."""

from __future__ import annotations

from enum import IntEnum

from ..core.errors import (
    ConfigurationError,
    DbError,
    FingerprintMismatchError,
    LeaseConflictError,
    SourceConfigurationError,
)

EXIT_CODES_HELP = (
    "Exit codes: 0 ok; 1 failed; 2 wrong usage or configuration; 3 refused (a guardrail, or the lease is held)."
)


class ExitCode(IntEnum):
    """How a command ended."""

    OK = 0
    FAILED = 1
    WRONG_CONFIGURATION = 2
    REFUSED = 3


class CommandError(Exception):
    """A command cannot go on: the sentence for the person, and the exit code for the script."""

    def __init__(self, message: str, code: ExitCode) -> None:
        super().__init__(message)
        self.code = code


_WRONG_CONFIGURATION = (ConfigurationError, SourceConfigurationError, FingerprintMismatchError)


def exit_code_of(error: BaseException) -> int:
    """Return the exit code for whatever ended a command."""
    match error:
        case CommandError():
            return error.code
        case LeaseConflictError():
            return ExitCode.REFUSED
        case DbError():
            return ExitCode.WRONG_CONFIGURATION if isinstance(error, _WRONG_CONFIGURATION) else ExitCode.FAILED
    return int(getattr(error, "exit_code", ExitCode.FAILED))


def sentence_of(error: BaseException) -> str:
    """Return one line that tells a person what is wrong and what to do."""
    if isinstance(error, (CommandError, DbError)):
        return _one_line(str(error))
    format_message = getattr(error, "format_message", None)
    if callable(format_message):  # a usage error of typer, whichever of its versions it comes from
        return _one_line(f"{format_message().rstrip('.')}. {_help_hint(error)}")
    return _one_line(
        f"Unexpected {described(error)}. Set HOLDFAST_DEBUG=1 to see where it comes from, and please report it."
    )


def described(error: BaseException) -> str:
    """Return an exception's type and message; of a driver's error only its first line, which holds no row's values."""
    message = str(getattr(error, "orig", None) or error).strip()
    first_line = message.split("\n", 1)[0].rstrip(".")
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__


def _help_hint(error: BaseException) -> str:
    path = getattr(getattr(error, "ctx", None), "command_path", "holdfast")
    return f"See '{path} --help'."


def _one_line(message: str) -> str:
    return " ".join(message.split())
