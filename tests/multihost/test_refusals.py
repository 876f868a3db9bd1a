"""What is wrong before a run starts: nothing is started anywhere, and the host and the reason are named."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.multihost.job import Ending, start
from tests.multihost.rig import HOOKS, NVME, Host, Rig
from tests.multihost.table import FaultTable, told

NOT_READY = 3
