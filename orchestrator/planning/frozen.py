"""Pipeline coordinates that a choice of frozen parameters leaves without anything to train."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.findings import Finding, error
from orchestrator.planning.partition import Partition, Stage


def frozen_stage_findings(partition: Partition, trainable_shares: Sequence[float]) -> Iterator[Finding]:
    """One error for all of them: DeepSpeed's optimizer needs a parameter, and gradients a way through every stage.

    The first stage must be trained itself, even where its rank holds another: token ids have no gradient.
    """

    def trains(stage: Stage) -> bool:
        return any(trainable_shares[layer] for layer in range(stage.start, stage.stop))

    untrained = [
        coordinate
        for coordinate in range(partition.num_coordinates)
        if not any(trains(stage) for stage in partition.held_by(coordinate))
    ]
    if untrained == [] and partition.num_coordinates > 1 and not trains(partition.stages[0]):
        untrained = [0]
    if untrained and len(untrained) < partition.num_coordinates:
        stages = ", ".join(map(str, untrained))
        yield error(
            "freeze-stage",
            "training.freeze",
            f"no parameter of pipeline stage {stages} is trained, and every stage needs one",
            "freeze less, use fewer stages, or cut the model elsewhere (parallelism.partition_boundaries)",
        )
