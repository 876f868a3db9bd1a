from __future__ import annotations

from pathlib import Path

from orchestrator.launch.ending.stacks import stack_groups
from orchestrator.presence import STACKS

WAITING = """Thread 0x00007f0001 (most recent call first):
  File "/env/lib/torch/distributed/distributed_c10d.py", line 3065 in all_reduce
  File "/home/me/orchestrator/worker/step.py", line 60 in _passes
  File "<frozen runpy>", line 198 in _run_module_as_main
"""
ASLEEP = """Thread 0x00007f0002 (most recent call first):
  File "/env/lib/python3.11/threading.py", line 327 in wait
  File "<frozen runpy>", line 1 in _bootstrap

Current thread 0x00007f0001 (most recent call first):
  File "/home/me/orchestrator/worker/data/tokens.py", line 80 in read
  File "/home/me/orchestrator/worker/step.py", line 50 in training_step
  File "<frozen runpy>", line 198 in _run_module_as_main
"""


def left(attempt: Path, stacks: dict[int, str]) -> None:
    (attempt / STACKS).mkdir()
    for rank, text in stacks.items():
        (attempt / STACKS / f"{rank}.txt").write_text(text)


def test_the_rank_that_waits_for_no_other_comes_first(tmp_path: Path) -> None:
    """Of two ranks neither is in the majority: one waits for the other."""
    left(tmp_path, {0: WAITING, 1: ASLEEP})
    odd, others = stack_groups(tmp_path)
    assert odd.ranks == (1,)
    assert odd.place.startswith("read (data/tokens.py:80)")
    assert others.ranks == (0,)


def test_of_many_ranks_the_smaller_group_comes_first(tmp_path: Path) -> None:
    left(tmp_path, {0: ASLEEP, 1: ASLEEP, 2: ASLEEP.replace("line 80", "line 81"), 3: WAITING})
    assert [group.ranks for group in stack_groups(tmp_path)] == [(2,), (0, 1), (3,)]


def test_a_script_of_the_users_own_is_where_its_rank_stands(tmp_path: Path) -> None:
    stack = """Current thread 0x00007f0001 (most recent call first):
  File "/env/lib/python3.11/socket.py", line 706 in readinto
  File "/home/me/train.py", line 12 in fetch
  File "/home/me/train.py", line 40 in <module>
  File "<frozen runpy>", line 88 in _run_code
  File "<frozen runpy>", line 291 in run_path
  File "/env/orchestrator/worker/script.py", line 77 in _run_script
  File "<frozen runpy>", line 198 in _run_module_as_main
"""
    left(tmp_path, {0: stack})
    (group,) = stack_groups(tmp_path)
    assert group.place == "readinto (python3.11/socket.py:706), called from fetch (me/train.py:12)"
