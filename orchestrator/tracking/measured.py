"""What was predicted of a run beside what it took, for the summary of its records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from orchestrator.steady import steady_entries


def result_summary(result: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a ``result.json`` that runs are compared by; the recorder adds what the steps took."""
    names = ("final_loss", "held_out_loss", "unigram_entropy", "metric", "tokens", "tokens_per_second")
    memory, best = result["memory"], result["best"] or {}
    return {
        **{name: result[name] for name in names},
        **{f"held_out_loss/{name}": loss for name, loss in result["held_out_losses"].items()},
        **{f"best/{name}": best[name] for name in ("step", "held_out_loss") if name in best},
        **compared("memory_bytes", memory["predicted_bytes"], memory["measured_bytes"]),
    }


def prediction_and_measurement(
    plan: Mapping[str, Any], entries: Iterable[Mapping[str, Any]], *, log_every: int
) -> dict[str, float]:
    """Medians of the steady steps against the plan: seconds of a step, tokens/s over all devices, MFU.

    ``NAME/predicted``, ``NAME/measured``, and with both ``NAME/error``: measured over predicted less one. What is not known is
    left out.
    """
    steady = steady_entries(entries, log_every)
    time = plan.get("time") or {}
    per_device = time.get("tokens_per_second_per_device")
    pairs = {
        "step_seconds": (time.get("step_seconds"), _median(steady, "step_seconds")),
        "tokens_per_second": (
            None if per_device is None else per_device * plan["layout"]["world_size"],
            _median(steady, "tokens_per_second"),
        ),
        "mfu": (time.get("model_flops_utilization"), _median(steady, "mfu")),
    }
    return {key: value for name, pair in pairs.items() for key, value in compared(name, *pair).items()}


def compared(name: str, predicted: float | None, measured: float | None) -> dict[str, float]:
    """A prediction, a measurement and the relative error between them, as far as they are known."""
    values = {f"{name}/predicted": predicted, f"{name}/measured": measured}
    if predicted and measured is not None:
        values[f"{name}/error"] = measured / predicted - 1
    return {key: value for key, value in values.items() if value is not None}


def _median(entries: Iterable[Mapping[str, Any]], name: str) -> float | None:
    values = [entry[name] for entry in entries if entry.get(name) is not None]
    return median(values) if values else None
