"""A Hugging Face Trainer script. All that it knows of the launch are the arguments it gets, and a callback.

::

    orchestrator launch experiment=smoke training.script=tests/scripts/trainer.py \
        'training.script_arguments=["{trainer_arguments}",--report_to,none]'
"""

from __future__ import annotations

import cpu_ranks  # noqa: F401 - only where there is no device
import torch
from torch.utils.data import TensorDataset
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

from orchestrator import script


def main() -> None:
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    set_seed(arguments.seed)
    shape = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
    )
    tokens = TensorDataset(torch.randint(0, 16, (64, 32), generator=torch.Generator().manual_seed(1)))

    def batch(rows: list[tuple[torch.Tensor]]) -> dict[str, torch.Tensor]:
        input_ids = torch.stack([row for (row,) in rows])
        return {"input_ids": input_ids, "labels": input_ids}

    trainer = Trainer(
        model=LlamaForCausalLM(shape),
        args=arguments,
        train_dataset=tokens,
        eval_dataset=tokens,
        data_collator=batch,
        callbacks=[script.TrainerReport()],
    )
    trainer.train()
    trainer.evaluate()


if __name__ == "__main__":
    main()
