"""How big a run is: the full one that gives figures, and the quick one that only shows that everything works."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of tables and numbers of rounds."""

    name: str
    catchup_rows: int
    catchup_rounds: int
    growth_rows: tuple[int, ...]
    growth_rounds: int
    enforces_targets: bool


FULL = Scale(
    name="full",
    catchup_rows=200_000,
    catchup_rounds=7,
    growth_rows=(10_000, 100_000, 1_000_000),
    growth_rounds=10,
    enforces_targets=True,
)
QUICK = Scale(
    name="quick",
    catchup_rows=20_000,
    catchup_rounds=1,
    growth_rows=(5_000, 20_000),
    growth_rounds=1,
    enforces_targets=False,
)
