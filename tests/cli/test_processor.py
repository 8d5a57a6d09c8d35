"""``holdfast processor`` and ``holdfast outbox``, as a person uses them."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from holdfast.outbox.context import ProcessorContext
from holdfast.outbox.message import Message
from holdfast.records import audit
from tests.cli.desk import Desk
from tests.outbox.shops import EFFECTS, write_effects


@pytest.fixture
def shop(desk: Desk) -> Desk:
    """A desk whose application has a processor that has handled two messages, and one that waits."""
    desk.hf.migrate()
    with desk.hf.database.begin() as connection:
        connection.execute(text(EFFECTS))
    desk.hf.processor("totals")(write_effects)
    append(desk, 1, 2)
    desk.hf.processors.run_until_caught_up("totals")
    append(desk, 3)
    return desk


def append(desk: Desk, *amounts: int) -> None:
    with desk.hf.database.begin() as connection:
        for amount in amounts:
            desk.hf.outbox.append(connection, "Paid", {"amount": amount})


def effects(desk: Desk) -> list[int]:
    with desk.hf.database.connect() as connection:
        return sorted(connection.execute(text("SELECT amount FROM effects")).scalars())


def quiet(messages: list[Message], context: ProcessorContext) -> None:
    """Do nothing."""


def listed(desk: Desk) -> dict[int, dict[str, object]]:
    return {item["version"]: item for item in desk("processor", "list", "--json").json["processors"]}


def test_a_list_of_nothing_says_what_to_expect(desk: Desk) -> None:
    desk.hf.migrate()
    assert desk("processor", "list").out == "No processor is registered. One is when it first runs.\n"


def test_the_list_tells_where_every_processor_stands(shop: Desk) -> None:
    [item] = shop("processor", "list", "--json").json["processors"]
    assert (item["processor_id"], item["version"], item["role"], item["status"]) == (
        "totals",
        1,
        "active",
        "not running",
    )
    assert (item["behind"], item["run_by"], item["waiting"]) == (1, None, [])
    shown = shop("processor", "list").out
    assert "totals v1 partition 0" in shown
    assert "nobody" in shown


def test_the_list_shows_who_runs_it_and_who_waits(shop: Desk) -> None:
    processor = shop.hf.processors.get("totals")
    runner = shop.hf.processors.runner(processor, processor.partition_ids[0])
    with runner.leased() as lease:
        shop.hf.processors.checkpoints.note_waiting(runner.id, "host/1/other")
        item = listed(shop)[1]
    assert (item["run_by"], item["waiting"]) == (lease.owner_id, ["host/1/other"])


def test_a_stopped_processor_is_resumed(shop: Desk) -> None:
    assert shop("processor", "stop", "totals", "--reason", "upgrade").out == "Stopped: 1 partition.\n"
    assert "totals v1 partition 0: upgrade" in shop("processor", "list").out
    assert shop("processor", "resume", "totals").out == "Resumed: 1 partition.\n"
    assert shop.hf.processors.run_until_caught_up("totals") == 1
    done = {
        action for action in ("processor stop", "processor resume") if any(action in entry for entry in shop.audited())
    }
    assert len(done) == 2


def test_one_that_was_not_stopped_is_said_to_run(shop: Desk) -> None:
    assert shop("processor", "resume", "totals").out == (
        "Processor 'totals' was not stopped, it was running: it only looks again where it stands.\n"
    )
    assert shop("processor", "resume", "totals", "--json").json == {"processor_id": "totals", "resumed": 0}
    assert shop.hf.processors.run_until_caught_up("totals") == 1


def test_the_list_shows_what_asks_for_a_checkpoint_and_has_none(shop: Desk) -> None:
    shop.hf.processor("late", start_from="stored")(quiet)
    shop.hf.processor("totals", version=2, start_from="stored")(quiet)
    for processor, version in (("late", 1), ("totals", 2)):
        title, fault = f"Processor '{processor}' version {version}", "has no stored checkpoint"
        assert f"{title}, as it is declared, does not run: {title} {fault}" in shop("processor", "list").out
        assert fault in shop("processor", "list", "--json").json["does_not_run"][title]


def test_a_version_is_promoted_once_it_has_caught_up(shop: Desk) -> None:
    shop.hf.processor("totals", version=2)(quiet)
    shop.hf.processors.register()
    shop.refused(3, "3 messages before it", "--force", arguments=("processor", "promote", "totals"))
    for version in (1, 2):
        shop.hf.processors.run_until_caught_up("totals", version=version)
    assert shop("processor", "promote", "totals").out == "Version 2 is active now.\n"
    assert {version: item["role"] for version, item in listed(shop).items()} == {1: "retired", 2: "active"}


def test_a_rebuild_empties_and_replays(shop: Desk) -> None:
    with shop.hf.database.begin() as connection:
        connection.execute(text("INSERT INTO effects VALUES ('wrong', 99)"))
    answer = shop("processor", "rebuild", "totals", "--truncate", "effects", "--yes", "--json")
    assert answer.json == {"processor_id": "totals", "replayed": 3}
    assert effects(shop) == [1, 2, 3]
    assert listed(shop)[1]["rebuild_to"] is None


def test_a_rebuild_asks_first(shop: Desk) -> None:
    arguments = ("processor", "rebuild", "totals", "--truncate", "effects")
    shop.refused(3, "Nothing was changed", arguments=arguments)
    shop.refused(3, "not the processor's id", arguments=arguments, typed="totale")
    assert effects(shop) == [1, 2]
    assert shop(*arguments, typed="totals").code == 0
    assert effects(shop) == [1, 2, 3]


def test_a_rebuild_that_was_cut_short_goes_on_without_asking(shop: Desk) -> None:
    shop.hf.processors.operator.start_rebuild("totals", ["effects"], actor="eve")
    answer = shop("processor", "rebuild", "totals", "--truncate", "effects")
    assert "going on with it" in answer.err
    assert effects(shop) == [1, 2, 3]


@pytest.mark.parametrize(("place", "behind"), [("beginning", 3), ("end", 0)])
def test_a_checkpoint_is_moved_by_hand(shop: Desk, place: str, behind: int) -> None:
    shop.refused(3, "Nothing was changed", arguments=("processor", "reset", "totals", place))
    answer = shop("processor", "reset", "totals", place, "--yes")
    assert answer.out == "Moved: 1 partition.\n"
    assert "3 messages from there" in answer.err or "0 messages from there" in answer.err
    assert listed(shop)[1]["behind"] == behind


def test_a_checkpoint_is_moved_to_one_from_a_listing(shop: Desk) -> None:
    before = listed(shop)[1]["checkpoint"]
    shop("processor", "reset", "totals", "beginning", "--yes")
    shop("processor", "reset", "totals", before, "--yes")
    assert listed(shop)[1]["behind"] == 1


def test_a_processor_is_forgotten(shop: Desk) -> None:
    assert shop("processor", "forget", "totals", "--yes").out == "Forgotten: 1 partition.\n"
    assert shop("processor", "list", "--json").json["processors"] == []


def test_13_16_old_messages_are_deleted_by_who_confirms_it_and_the_audit_says_so(shop: Desk) -> None:
    assert shop("outbox", "prune", "--older-than", "1d", "--yes").out == "0 messages deleted.\n"
    shop.refused(3, "no terminal to confirm on", arguments=("outbox", "prune", "--older-than", "0m"))
    shop.refused(3, "Nothing was changed", arguments=("outbox", "prune", "--older-than", "0m"), typed="no")
    assert shop.audited() == []
    answer = shop("outbox", "prune", "--older-than", "0m", "--json", typed="prune")
    assert (answer.json, "every registered processor has passed would be deleted" in answer.err) == (
        {"deleted": 2},
        True,
    )
    [row] = audit.page(shop.hf.database).items
    assert (row.actor, row.action, row.target) == ("eve", "outbox prune", "holdfast_outbox")
    assert row.details == {"older_than_seconds": 0.0, "deleted": 2}
    shop.refused(2, "--older-than 30d", arguments=("outbox", "prune"))
    assert "that were appended longer ago" in " ".join(shop("outbox", "prune", "--help").out.replace("│", "").split())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("processor", "promote", "other"), "There is no processor 'other'"),
        (("processor", "stop", "other"), "There is no processor 'other'"),
        (("processor", "list", "other"), "There is no processor 'other'"),
        (("processor", "forget", "other", "--yes"), "There is no processor 'other'"),
        (("processor", "reset", "totals", "nowhere", "--yes"), "'nowhere' is not a checkpoint"),
        (("processor", "rebuild", "other", "--yes"), "There is no processor 'other' here"),
        (("processor", "rebuild", "totals", "--truncate", "nowhere", "--yes"), "nowhere"),
        (("processor", "rebuild", "totals", "--truncate", "holdfast_outbox", "--yes"), "a table of Holdfast itself"),
        (("processor", "promote", "totals", "--version", "9"), "has no version 9"),
    ],
)
def test_what_is_not_there_is_told_and_nothing_is_changed(shop: Desk, arguments: tuple[str, ...], told: str) -> None:
    shop.refused(2, told, arguments=arguments)
    assert listed(shop)[1]["behind"] == 1
    assert effects(shop) == [1, 2]


def test_13_7_a_rebuild_after_retention_is_refused_unless_the_first_message_kept_is_named(shop: Desk) -> None:
    shop.hf.processors.run_until_caught_up("totals")
    assert shop("outbox", "prune", "--older-than", "0s", "--yes").out == "3 messages deleted.\n"
    append(shop, 4)
    shop.hf.processors.run_until_caught_up("totals")
    first = str(listed(shop)[1]["checkpoint"])
    arguments = ("processor", "rebuild", "totals", "--truncate", "effects", "--yes")
    shop.refused(3, "retention has deleted messages (3 until", f"--first-kept {first}", arguments=arguments)
    shop.refused(3, f"--first-kept {first}", arguments=("processor", "reset", "totals", "beginning", "--yes"))
    assert effects(shop) == [1, 2, 3, 4]
    assert shop(*arguments, "--first-kept", first, "--json").json == {"processor_id": "totals", "replayed": 1}
    assert effects(shop) == [4]
