"""Which commands there are, and where each is: a command is imported when it is asked for, help asks for all."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from .exits import EXIT_CODES_HELP


class Place(NamedTuple):
    """Where a command is: the module that has it, its name there, and modules that add commands to it."""

    module: str
    attribute: str
    adding: tuple[str, ...] = ()
    epilog: str | None = None


COMMANDS = {
    "run": Place(".run", "run", epilog=EXIT_CODES_HELP),
    "migrate": Place(".run", "migrate", epilog=EXIT_CODES_HELP),
    "serve": Place(".serve", "serve", epilog=EXIT_CODES_HELP),
    "jobs-server": Place(".jobs_server", "jobs_server", epilog=EXIT_CODES_HELP),
    "demo": Place(".demo.command", "demo"),
    "workers": Place(".workers", "workers", epilog=EXIT_CODES_HELP),
    "trigger": Place(".trigger", "trigger_app", adding=(".install_cursor", ".reset")),
    "jobs": Place(".jobs", "jobs_app"),
    "processor": Place(".processor", "processor_app"),
    "outbox": Place(".outbox", "outbox_app"),
    "engine": Place(".engine", "engine_app"),
    "dlq": Place(".dlq", "dlq_app"),
    "history": Place(".history", "history_app"),
    "registry": Place(".registry", "registry_app"),
    "audit": Place(".audit", "audit_app"),
    "new": Place(".new", "new_app"),
}


class Commands(TyperGroup):
    """The commands of ``holdfast``, each imported on first use."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names, in the order of help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return one command, None if there is none of that name."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            self.commands[cmd_name] = command_named(cmd_name)
        return self.commands.get(cmd_name)


def command_named(name: str) -> Any:
    """Import a command, or a group of commands, with everything that adds to it."""
    place = COMMANDS[name]
    modules = [import_module(module, __package__) for module in (place.module, *place.adding)]
    found: Any = getattr(modules[0], place.attribute)
    if isinstance(found, typer.Typer):
        group = get_group(found)
        group.name = name
        return group
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    single.command(name, epilog=place.epilog)(found)
    return get_command(single)
