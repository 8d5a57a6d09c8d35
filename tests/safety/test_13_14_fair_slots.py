"""Issue 13, line 14: what a server has places for is shared, over whichever protocol."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from holdfast.runtime.fair_slots import FairSlots, OpenAtOnce


def test_13_14_nobody_has_more_than_a_share_of_the_places() -> None:
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    async def work(places: FairSlots, who: str) -> None:
        async with places.place(who):
            running.update([who, "all"])
            most[who], most["all"] = max(most[who], running[who]), max(most["all"], running["all"])
            await asyncio.sleep(0)
            running.subtract([who, "all"])

    async def run() -> None:
        places = FairSlots(3, 2)
        await asyncio.gather(*(work(places, who) for who in "aaaaaabbbbbb"))

    asyncio.run(run())
    assert (most["a"], most["all"]) == (2, 3)
    assert 1 <= most["b"] <= 2


def test_13_14_a_place_is_free_again_when_whoever_has_it_or_waits_for_it_goes() -> None:
    async def hold(places: FairSlots, who: str) -> None:
        async with places.place(who):
            await asyncio.Event().wait()

    async def run() -> None:
        places = FairSlots(2, 1)
        held = [asyncio.ensure_future(hold(places, who)) for who in "aabbcc"]
        await asyncio.sleep(0)
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        async with places.place("a"), places.place("b"):
            pass
        assert places._own == {}  # nobody is remembered for ever

    asyncio.run(asyncio.wait_for(run(), 60))


def test_13_14_so_much_is_open_at_once_and_more_is_refused() -> None:
    open_at_once = OpenAtOnce(1, lambda most: LookupError(f"{most} are the most"))
    with open_at_once.counted("a"), open_at_once.counted("b"):
        with pytest.raises(LookupError, match="1 are the most"), open_at_once.counted("a"):
            pass
        with pytest.raises(LookupError), open_at_once.counted("a"):
            pass
    with open_at_once.counted("a"):
        pass
