"""The usual advice on which kinds of parallelism to combine, by the size of a model: to stand beside what a search finds.

Source: the table of recommended strategies by model scale in the chapter on distributed training infrastructure.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.planning.search.search import Candidate

_BILLION = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """What is recommended below so many parameters; ``None``: for everything larger."""

    below: int | None
    scale: str
    kinds: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        return " + ".join(self.kinds)


STRATEGIES = (
    Strategy(below=_BILLION, scale="below 1B", kinds=("DP",), reason="it fits one device, and nothing is simpler"),
    Strategy(below=10 * _BILLION, scale="1B to 10B", kinds=("DP", "PP"), reason="it needs several devices that talk little"),
    Strategy(below=100 * _BILLION, scale="10B to 100B", kinds=("DP", "PP", "TP"), reason="it has to be split finely"),
    Strategy(below=None, scale="above 100B", kinds=("DP", "PP", "TP", "ZeRO"), reason="memory is what lacks most"),
)


def recommended(num_parameters: int) -> Strategy:
    """What the table says of a model of so many parameters."""
    return next(strategy for strategy in STRATEGIES if strategy.below is None or num_parameters < strategy.below)


def kinds_of(candidate: Candidate) -> tuple[str, ...]:
    """The kinds of parallelism of a plan, in the table's words."""
    choice = candidate.choice
    used = {
        "DP": choice.data_parallel_size > 1,
        "PP": choice.pipeline_parallel_size > 1,
        "TP": choice.tensor_parallel_size > 1,
        "ZeRO": choice.zero_stage > 0 and choice.data_parallel_size > 1,
    }
    return tuple(kind for kind, is_used in used.items() if is_used)
