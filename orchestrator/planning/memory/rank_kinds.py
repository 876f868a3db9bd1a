"""What the ranks of a run have in common: coordinates whose stages are alike differ in micro-batches in flight alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.config.enums import Accelerator
from orchestrator.planning.memory.activations import pass_bytes
from orchestrator.planning.memory.device import Phase, PhaseComponents, StageLoad, pass_components, state_components
from orchestrator.planning.memory.disk import rank_file_bytes
from orchestrator.planning.memory.host import host_states
from orchestrator.planning.memory.hosts import HostShare, host_share
from orchestrator.planning.memory.levels import cached_bytes
from orchestrator.planning.memory.shape import RankShape, known_shapes
from orchestrator.planning.memory.states import FP32_BYTES
from orchestrator.planning.partition import Stage

if TYPE_CHECKING:
    from orchestrator.planning.memory.estimate import Estimator


class RankKind(NamedTuple):
    """What stages have in common that hold the same, wherever they are."""

    shape: RankShape
    states: Mapping[Phase, Mapping[str, int]]
    """``state_components`` that are there at all, in whole bytes."""
    state_totals: Mapping[Phase, int]
    cached: int
    """``cached_bytes`` of them."""
    files: tuple[int, int]
    """``rank_file_bytes``."""
    shares: dict[tuple[int, int], HostShare]
    """By the bytes of the process and of the activations that wait in host memory."""

    def totals(self, passes: Mapping[Phase, Mapping[str, int]]) -> Mapping[Phase, int]:
        """Bytes of each phase with the components ``passes``, which are none of the states."""
        added = {phase: self.state_totals[phase] + sum(parts.values()) for phase, parts in passes.items()}
        return {**self.state_totals, **added}


class RankKinds:
    """The ranks of one run: what several pipeline coordinates share is computed once."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator
        self._of_pass = pass_bytes(estimator.spec, estimator.passed)
        self._shapes = estimator.tensor_shapes
        self._kinds = self._known_kinds()

    def of_rank(self, coordinate: int, held: Sequence[Stage]) -> tuple[RankKind, StageLoad]:
        """The kind and the load of the ranks of a pipeline coordinate that hold ``held``."""
        shares = self._estimator.trainable_shares
        key = tuple(stage.kind if shares is None else stage for stage in held)
        kind = self._kinds.get(key)
        if kind is not None:
            return kind, self._estimator.load(coordinate, held, kind.shape)
        load = self._estimator.load(coordinate, held, self._shapes.of_rank(held, shares))
        model, optimizer = rank_file_bytes(self._estimator.settings, load)
        states = self._states(load)
        kind = self._kinds[key] = RankKind(
            shape=load.shape,
            states=states,
            state_totals={phase: sum(components.values()) for phase, components in states.items()},
            cached=cached_bytes(states),
            files=(int(model), int(optimizer)),
            shares={},
        )
        return kind, load

    def passes(self, load: StageLoad) -> Mapping[Phase, Mapping[str, int]]:
        """``pass_components`` that are there at all, in whole bytes."""
        passes = pass_components(load, self._of_pass)
        if self._estimator.settings.accelerator is Accelerator.cpu:
            # What is offloaded stays in the same process.
            waiting = {"offloaded_activations": self._host_activations(load)}
            passes = {phase: {**parts, **waiting} for phase, parts in passes.items()}
        return _whole(passes)

    def host_share(self, kind: RankKind, load: StageLoad, *, device_bytes: int) -> HostShare:
        """What a rank adds to its host."""
        estimator = self._estimator
        process = device_bytes if estimator.settings.accelerator is Accelerator.cpu else 0
        waiting = self._host_activations(load)
        share = kind.shares.get((process, waiting))
        if share is None:
            share = kind.shares[process, waiting] = host_share(
                estimator.settings,
                estimator.cluster,
                load,
                device_bytes=process,
                file_bytes=sum(kind.files),
                activation_bytes=waiting,
                initial_value_bytes=self._initial_value_bytes(load),
            )
        return share

    def _known_kinds(self) -> dict[Any, RankKind]:
        """Those of runs that differ in passes alone. Not on a CPU, whose shares of a host are the passes' as well."""
        estimator, layout = self._estimator, self._estimator.layout
        if estimator.trainable_shares is not None or estimator.settings.accelerator is Accelerator.cpu:
            return {}
        sizes = (layout.tensor_parallel_size, layout.data_parallel_size, layout.pipeline_parallel_size > 1)
        return _kinds_of(estimator.spec, estimator.settings, *sizes, layout.gradient_accumulation_steps > 1)

    def _states(self, load: StageLoad) -> Mapping[Phase, Mapping[str, int]]:
        settings = self._estimator.settings
        phases = _whole(state_components(settings, load))
        if settings.accelerator is not Accelerator.cpu:
            return phases
        states = host_states(settings, load.shape, data_parallel_size=load.data_parallel_size, accumulates=load.accumulates)
        offloaded = {"offloaded_states": int(states.total)} if states.total else {}
        return {phase: {**components, **offloaded} for phase, components in phases.items()}

    def _host_activations(self, load: StageLoad) -> int:
        if not self._of_pass.passed.cpu_checkpointing:
            return 0
        held = zip(load.held, load.in_flight, strict=True)
        return sum(int(self._of_pass.host_activations(stage, in_flight=count)) for stage, count in held)

    def _initial_value_bytes(self, load: StageLoad) -> int:
        """Workers draw each parameter whole and in fp32, one at a time, and keep their part (``models/initialization.py``)."""
        whole = known_shapes(self._estimator.spec, tensor_parallel_size=1, persistence_threshold=0)
        return FP32_BYTES * int(whole.of_rank(load.held).largest_parameter)


@lru_cache(maxsize=256)
def _kinds_of(*_: object) -> dict[Any, RankKind]:
    """One dictionary for each model, settings and layout."""
    return {}


def _whole(phases: PhaseComponents) -> Mapping[Phase, Mapping[str, int]]:
    """Whole bytes of what is there at all."""
    return {phase: {name: int(size) for name, size in parts.items() if size} for phase, parts in phases.items()}
