"""Taking turns: contestants run one after the other, round by round, so that a noisy minute hits them all."""

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Contestant:
    """Something that reads the whole table from its beginning each time it is run, and checks that it did.

    ``rounds`` limits how often a slow one runs. ``seconds`` collects one figure per round.
    """

    name: str
    run: Callable[[], None]
    rounds: int
    seconds: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        """Return the shortest time: what the others on the machine disturbed least."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """Return the middle time."""
        return statistics.median(self.seconds)

    def speed_against(self, other: "Contestant") -> float:
        """Return how many times as fast as the other this one is: best against best of the rounds both took part in."""
        common = min(len(self.seconds), len(other.seconds))
        return min(other.seconds[:common]) / min(self.seconds[:common])


def take_turns(contestants: Sequence[Contestant]) -> None:
    """Run every contestant in every round it takes part in, each round in the other direction."""
    for number in range(max(contestant.rounds for contestant in contestants)):
        for contestant in contestants if number % 2 == 0 else reversed(contestants):
            if number < contestant.rounds:
                contestant.seconds.append(_timed(contestant.run))


def _timed(run: Callable[[], None]) -> float:
    gc.collect()
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
