"""A DeepSpeed loop written by hand: the compiled JSON, the run's own learning rate, reports, and a stop between two steps.

::

    orchestrator launch experiment=smoke training.script=tests/scripts/hand_written.py \
        'training.script_arguments=[--deepspeed_config,"{ds_config}"]'
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import deepspeed
import torch
from torch import nn

from orchestrator import script


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--deepspeed_config", required=True)
    parser.add_argument("--fail_rank", type=int, default=-1)
    arguments = parser.parse_args()
    deepspeed.init_distributed()
    rank = torch.distributed.get_rank()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(256, 64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 256))
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config=json.loads(Path(arguments.deepspeed_config).read_text()),
        lr_scheduler=script.lr_scheduler,
    )
    run = script.this_run()
    steps = run.max_steps if run is not None else 5
    generator = torch.Generator().manual_seed(rank)
    for step in range(1, steps + 1):
        rate = engine.get_lr()[0]
        for _ in range(engine.gradient_accumulation_steps()):
            tokens = torch.randint(0, 8, (engine.train_micro_batch_size_per_gpu(), 33), generator=generator)
            loss = nn.functional.cross_entropy(engine(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
            engine.backward(loss)
            engine.step()
        if rank == arguments.fail_rank:
            raise ValueError(f"rank {rank} has read a bad record")
        script.report(step=step, loss=loss.detach(), lr=rate, grad_norm=engine.get_global_grad_norm())
        if script.should_stop():
            engine.save_checkpoint(str(run.output_dir), tag=f"step{step}")
            script.report_checkpoint(run.output_dir / f"step{step}")
            break
    script.report_evaluation(step=step, held_out_loss=loss.detach(), accuracy=0.5)


if __name__ == "__main__":
    main()
