"""Arguments of a user's own training script: names in braces that stand for what is known of the run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

TRAINER_ARGUMENTS = "trainer_arguments"
"""An argument of its own that becomes several: all that a Hugging Face Trainer must be told to agree with the JSON."""
PLACEHOLDERS = (
    "ds_config",
    "run_dir",
    "attempt_dir",
    "output_dir",
    "seed",
    "max_steps",
    "learning_rate",
    "sequence_length",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "data_parallel_size",
    "tensor_parallel_size",
    "pipeline_parallel_size",
)
"""Names that may stand in braces anywhere in an argument."""
_NAME = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def unknown_names(arguments: Sequence[str]) -> list[str]:
    """Names in braces that stand for nothing; other braces (JSON, ...) are left alone."""
    named = [name for argument in arguments for name in _NAME.findall(argument)]
    whole = TRAINER_ARGUMENTS if f"{{{TRAINER_ARGUMENTS}}}" in arguments else ""
    return [name for name in dict.fromkeys(named) if name not in PLACEHOLDERS and name != whole]


def resolved(arguments: Sequence[str], values: Mapping[str, object], trainer_words: Sequence[str]) -> list[str]:
    """The arguments as the script gets them; ``values`` has every name of ``PLACEHOLDERS``. Unknown names stay."""
    words: list[str] = []
    for argument in arguments:
        if argument == f"{{{TRAINER_ARGUMENTS}}}":
            words += trainer_words
        else:
            words.append(_NAME.sub(lambda match: str(values.get(match[1], match[0])), argument))
    return words
