"""Whatever a handler raises is the handler's failure, also when it is one of Holdfast's own errors."""

import pytest

from holdfast import DbError, HandlerError, LeaseConflictError, LostLeaseError, RetryPolicy, RowChange, WriteError
from tests.components.processes import wait_until
from tests.trigger.shop import Shop


@pytest.mark.parametrize("error_class", [WriteError, LeaseConflictError, LostLeaseError])
def test_our_own_errors_are_the_handlers_failure_and_are_retried(sqlite_shop: Shop, error_class: type[DbError]) -> None:
    attempts: list[int] = []

    @sqlite_shop.hf.trigger(
        "orders", cursor="updated_at", retry_policy=RetryPolicy(max_retries=2, base_delay_seconds=0.001)
    )
    def ship(changes: list[RowChange]) -> None:
        attempts.append(len(changes))
        raise error_class("somewhere else")

    sqlite_shop.place([1, 2])
    runner = sqlite_shop.hf.runner("orders")
    with pytest.raises(HandlerError, match="somewhere else") as caught:
        wait_until(lambda: runner.tick() and False, "the handler to fail")
    assert isinstance(caught.value.__cause__, error_class)
    assert attempts == [2, 2, 2]
    view = sqlite_shop.hf.state.read("orders")
    assert view is not None
    assert view.checkpoint == {}
