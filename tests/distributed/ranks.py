"""Runs a function in several ranks, each a process forked from one server that has imported everything already.

Importing torch, DeepSpeed and transformers takes a process many seconds; forking takes none. The server is started by
the first call and serves the whole test session.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pickle
import time
import traceback
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from orchestrator.launch.ports import free_port

PRELOADED = [
    "pytest",
    "torch",
    "torch._dynamo",
    "deepspeed",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.gpt_neox.modeling_gpt_neox",
    "transformers.models.llama.modeling_llama",
    "transformers.models.mistral.modeling_mistral",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen3.modeling_qwen3",
    "transformers.models.gemma2.modeling_gemma2",
    "transformers.models.phi3.modeling_phi3",
    "deepspeed.runtime.pipe.dualpipev",
    "orchestrator.worker.start",
    "orchestrator.worker.train",
    "tests.distributed.cpu_info",
]
SERVER_ENVIRONMENT = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
TIMEOUT_SECONDS = 240.0
GRACE_SECONDS = 5.0


class RankFailedError(AssertionError):
    """A rank raised, died or did not end in time; the message holds its traceback or the end of its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Ranks that are running and meet at ``port``; ``directory`` holds what each printed and returned."""

    processes: list[BaseProcess]
    port: int
    directory: Path
    deadline: float

    def results(self) -> list[Any]:
        """What the function returned in each rank, once all have ended.

        Raises:
            RankFailedError: a rank failed or is not done in time. No rank is left running.
        """
        try:
            self._wait()
        finally:
            self.kill()
        failed = [rank for rank, process in enumerate(self.processes) if process.exitcode != 0]
        if failed:
            raise RankFailedError("\n".join(self._said(rank) for rank in failed))
        return [pickle.loads(self._file(rank, "result").read_bytes()) for rank in range(len(self.processes))]

    def output(self, rank: int) -> str:
        """Everything a rank printed; nothing if it died before it could."""
        log = self._file(rank, "log")
        return log.read_text() if log.exists() else ""

    def kill(self) -> None:
        """SIGKILL to every rank that is still there."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()

    def _wait(self) -> None:
        deadline = self.deadline
        while any(process.is_alive() for process in self.processes):
            if any(process.exitcode not in (None, 0) for process in self.processes):
                # The others wait for a rank that is gone; they get a moment to notice.
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
            if time.monotonic() > deadline:
                return
            time.sleep(0.02)

    def _said(self, rank: int) -> str:
        return f"rank {rank}, exit code {self.processes[rank].exitcode}:\n{self.output(rank)[-4000:]}"

    def _file(self, rank: int, kind: str) -> Path:
        return _file(self.directory, rank, kind)


def start_ranks(
    function: str, *arguments: Any, world_size: int, directory: Path, timeout_seconds: float = TIMEOUT_SECONDS
) -> Ranks:
    """Start ``function(*arguments)`` in ``world_size`` ranks.

    ``function`` is named ``module:function``, so that the test session need not import what only the ranks run.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    _start_server()
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    environment = {
        "WORLD_SIZE": str(world_size),
        "LOCAL_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    processes: list[BaseProcess] = [
        context.Process(target=_rank_main, args=(function, arguments, rank, environment, directory))
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    return Ranks(processes=processes, port=port, directory=directory, deadline=time.monotonic() + timeout_seconds)


def run_ranks(function: str, *arguments: Any, world_size: int, directory: Path) -> list[Any]:
    """Run ``function(*arguments)`` in ``world_size`` ranks and return what it returned in each.

    Raises:
        RankFailedError: a rank failed or is not done in time.
    """
    return start_ranks(function, *arguments, world_size=world_size, directory=directory).results()


def _rank_main(function: str, arguments: tuple[Any, ...], rank: int, environment: dict[str, str], directory: Path) -> None:
    log = os.open(_file(directory, rank, "log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
    try:
        module, name = function.split(":")
        result = getattr(importlib.import_module(module), name)(*arguments)
        _file(directory, rank, "result").write_bytes(pickle.dumps(result))
    except BaseException:
        traceback.print_exc()
        # Without destructors, which may wait for ranks that are gone.
        os._exit(1)


def _start_server() -> None:
    before = {name: os.environ.get(name) for name in SERVER_ENVIRONMENT}
    os.environ.update(SERVER_ENVIRONMENT)
    try:
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _file(directory: Path, rank: int, kind: str) -> Path:
    return directory / f"rank_{rank}.{kind}"
