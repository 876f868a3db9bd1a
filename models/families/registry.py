"""The families by name. One file a family stands beside this one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from orchestrator.config.enums import Family
from orchestrator.models.families.family import FamilyModules
from orchestrator.models.families.gemma2 import GEMMA2
from orchestrator.models.families.gpt2 import GPT2
from orchestrator.models.families.gpt_neox import GPT_NEOX
from orchestrator.models.families.llama import LLAMA
from orchestrator.models.families.mistral import MISTRAL
from orchestrator.models.families.phi3 import PHI3
from orchestrator.models.families.qwen2 import QWEN2
from orchestrator.models.families.qwen3 import QWEN3

FAMILY_MODULES: Mapping[Family, FamilyModules] = MappingProxyType(
    {
        Family.gpt2: GPT2,
        Family.llama: LLAMA,
        Family.mistral: MISTRAL,
        Family.qwen2: QWEN2,
        Family.qwen3: QWEN3,
        Family.gpt_neox: GPT_NEOX,
        Family.gemma2: GEMMA2,
        Family.phi3: PHI3,
    }
)
"""The Hugging Face classes and the regions of every family."""
