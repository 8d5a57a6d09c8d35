"""The command itself: version, help, the exit codes it documents, and what importing the library costs."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from holdfast import __version__
from holdfast.cli.main import app
from holdfast.core.errors import (
    ConfigurationError,
    DbConnectionError,
    FingerprintMismatchError,
    LeaseConflictError,
    MissingDependencyError,
    MissingGrantError,
    Unavailable,
    UnreadableStateError,
)
from tests.cli.shop import EVERY_MIGRATION, Shop


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["trigger", "--help"], [], ["trigger"]])
def test_answers(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert result.output.strip()


def test_version() -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"holdfast {__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["migrate", "--help"], ["trigger", "--help"]])
def test_help_documents_the_exit_codes(arguments: list[str]) -> None:
    shown = " ".join(CliRunner().invoke(app, arguments).output.split())
    assert "0 ok; 1 failed; 2 wrong usage or configuration; 3 refused" in shown


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError, 2),
        (MissingDependencyError, 2),
        (MissingGrantError, 2),
        (FingerprintMismatchError, 2),
        (LeaseConflictError, 3),
        (UnreadableStateError, 1),
        (DbConnectionError, 1),
        (Unavailable, 1),
        (KeyError, 1),
    ],
)
def test_exit_code_of_each_kind_of_error(error: type[Exception], code: int) -> None:
    from holdfast.cli.exits import exit_code_of

    assert exit_code_of(error("what happened")) == code


def test_unexpected_error_is_one_sentence_too(shop: Shop) -> None:
    shop.write_app(
        "from holdfast import Holdfast\n\n"
        "class Broken(Holdfast):\n    def migrate(self):\n        raise LookupError('first line\\nsecond line')\n\n"
        "hf = Broken()\n"
    )
    result = shop.cli("migrate")
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "Unexpected LookupError: first line." in result.stderr
    assert "HOLDFAST_DEBUG=1" in result.stderr
    assert "Traceback" in shop.cli("migrate", environment={"HOLDFAST_DEBUG": "1"}).stderr


def test_migrate_says_what_it_did(shop: Shop) -> None:
    assert shop.cli("migrate").stdout == f"Applied: {', '.join(EVERY_MIGRATION)}\n"
    assert shop.cli("migrate").stdout == "The tables are up to date.\n"


def test_migrate_as_json(shop: Shop) -> None:
    answer = json.loads(shop.cli("migrate", "app:hf", "--json").stdout)
    assert answer == {"applied": EVERY_MIGRATION, "up_to_date": False}
    assert '"up_to_date": true' in shop.cli("migrate", "--json").stdout


def test_importing_the_library_does_not_import_the_command_line() -> None:
    code = "import sys, holdfast; print({'typer', 'click', 'rich', 'holdfast.cli'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
