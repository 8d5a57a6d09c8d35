"""Issue 13, line 16: the audit can be read from the command line."""

from __future__ import annotations

from holdfast.cli.commands import COMMANDS, command_named
from tests.cli.desk import Desk
from tests.records.samples import add_letter


def test_13_16_the_audit_is_listed_newest_first(desk: Desk) -> None:
    for item in ("m-1", "m-2"):
        letter = add_letter(desk.hf.database, item=item)
        desk("dlq", "resolve", "hmac", letter.row_key, "--notes", f"about {item}")
    listed = desk("audit", "list", "--json").items
    assert [row["details"]["notes"] for row in listed] == ["about m-2", "about m-1"]
    first = desk("audit", "list", "--limit", 1, "--json")
    assert desk("audit", "list", "--after", first.json["continuation_token"], "--json").items == listed[1:]
    assert "dlq resolve" in desk("audit", "list", "--action", "dlq resolve").out
    assert "Nothing was changed by hand that fits." in desk("audit", "list", "--action", "nothing").out


def test_13_16_the_audit_is_sealed_and_verified_from_the_command_line(desk: Desk) -> None:
    letter = add_letter(desk.hf.database)
    desk("dlq", "resolve", "hmac", letter.row_key, "--notes", "done")
    head = desk("audit", "seal", "--json").json["head"]
    assert desk("audit", "verify", "--json", "--head", head).json["rows"] == 1
    assert f"head {head}" in desk("audit", "verify").out
    with desk.hf.database.begin() as connection:
        connection.exec_driver_sql("UPDATE holdfast_audit SET actor = 'adam'")
    answer = desk("audit", "verify")
    assert (answer.code, "row 1 was changed after seal 1" in answer.err) == (1, True)
    assert desk("audit", "prune", "--older-than", "1d").code == 2
    assert desk("audit", "prune", "--older-than", "7d", "--json").json == {"deleted": 0}


def test_13_16_housekeeping_seals_the_audit(desk: Desk) -> None:
    letter = add_letter(desk.hf.database)
    desk("dlq", "resolve", "hmac", letter.row_key, "--notes", "done")
    for chore in desk.hf.record_chores:
        chore.task()
    assert desk("audit", "list", "--json").items[0]["seal"] == 1


READING = {
    "audit": {"list", "verify"},
    "dlq": {"list", "show"},
    "engine": {"list"},
    "history": {"list", "show"},
    "jobs": {"list", "show", "stats", "periodic"},
    "new": {"function-app"},
    "processor": {"list"},
    "registry": {"show"},
    "trigger": {"list", "show"},
}
AUDITED = {
    "audit": {"prune"},
    "dlq": {"retry", "resolve", "reopen", "expire"},
    "engine": {"send", "drain-poison"},
    "jobs": {"retry", "cancel", "pause", "resume"},
    "outbox": {"prune", "adopt"},
    "processor": {"promote", "stop", "resume", "reset", "forget", "rebuild"},
    "registry": {"init", "lock", "unlock"},
    "trigger": {
        "install-cursor", "reset-to-beginning", "reset-to-cursor", "reset-to-checkpoint", "undo", "resume", "clone",
        "adopt",
    },
}  # fmt: skip
BY_THEMSELVES = {"run", "migrate", "serve", "jobs-server", "demo", "workers"}  # they begin work, or make tables
OF_THE_AUDIT = {"audit": {"seal"}}  # what housekeeping does, too


def test_13_16_every_command_reads_or_is_known_to_be_audited() -> None:
    """A new command that changes something has a row in the audit, a test that shows it, and a place here."""
    found = {name: set(getattr(command_named(name), "commands", {})) for name in COMMANDS}
    assert {name for name, commands in found.items() if not commands} == BY_THEMSELVES
    known = {name: set[str]() for name in found if name not in BY_THEMSELVES}
    for kind in (READING, AUDITED, OF_THE_AUDIT):
        for name, commands in kind.items():
            known[name] |= commands
    assert {name: commands for name, commands in found.items() if commands} == known
