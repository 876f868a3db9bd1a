"""The reader of a rank's batches, and what its training order depends on."""

from __future__ import annotations

from typing import Any

from orchestrator.config.enums import DataSource
from orchestrator.config.schema import RunConfig
from orchestrator.errors import ConfigurationError
from orchestrator.planning.layout import ParallelLayout
from orchestrator.tokens.blend import blend_of
from orchestrator.tokens.order import sample_order, size_findings
from orchestrator.tokens.windows import StreamWindows
from orchestrator.worker.data.batches import BatchReader
from orchestrator.worker.data.sequences import SequenceSource
from orchestrator.worker.data.tokens import TokenFile


def batch_reader(config: RunConfig, token_file: TokenFile, *, layout: ParallelLayout, rank: int) -> BatchReader:
    """The reader of ``rank``'s batches.

    Raises:
        ConfigurationError: there are too few tokens for one training sequence.
    """
    length = config.data.sequence_length
    windows = StreamWindows(num_tokens=token_file.num_tokens, sequence_length=length)
    order = sample_order(windows.num_sequences, held_out_fraction=config.data.held_out_fraction, seed=config.seed)
    if findings := size_findings(order, name="the data", num_tokens=token_file.num_tokens, sequence_length=length):
        raise ConfigurationError(findings)
    source = SequenceSource(
        tokens=token_file,
        windows=windows,
        order=order,
        sequence_length=length,
        reset_at_documents=config.data.reset_at_documents,
        ignore_fraction=config.data.ignore_fraction if config.data.source is DataSource.synthetic else 0.0,
    )
    return BatchReader(sources=[source], blend=blend_of([1.0]), layout=layout, rank=rank)


def data_identity(config: RunConfig, token_file: TokenFile) -> dict[str, Any]:
    """What decides which sequence stands where in the training order: a position means nothing under another identity."""
    return {
        "data.source": token_file.identity,
        "data.sequence_length": config.data.sequence_length,
        "data.held_out_fraction": config.data.held_out_fraction,
        "seed": config.seed,
    }
