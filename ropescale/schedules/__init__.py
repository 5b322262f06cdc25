"""The schedules, one paper per file. Standard library only: importing this imports neither torch nor transformers.

Adding one: a file beside these, a line here, a row in the README, a case in the tests.
"""

from __future__ import annotations

# isort: off
# In the order of the README's table, which is the order of `names()`.
from .as_is import AsIs, from_rope_parameters
from .plain import Base
from .linear import Linear
from .ntk import Ntk
from .ntk_su import NtkSu
from .ntk_mixed import NtkMixed
from .abf import Abf
from .dynamic import Dynamic
from .ntk_by_parts import NtkByParts
from .yarn import Yarn
from .dynamic_yarn import DynamicYarn
from .longrope import LongRope
from .llama3 import Llama3
from .proportional import Proportional
from .giraffe import Giraffe
from .resonance import Resonance
from .table import Table
# isort: on

from .base import BuiltIn, Frequencies, Schedule, compute, label_of, lookup, names
from .specs import Spec, create, describe, parse, resolve, to_dict

__all__ = [
    "Abf",
    "AsIs",
    "Base",
    "BuiltIn",
    "Dynamic",
    "DynamicYarn",
    "Frequencies",
    "Giraffe",
    "Linear",
    "Llama3",
    "LongRope",
    "Ntk",
    "NtkByParts",
    "NtkMixed",
    "NtkSu",
    "Proportional",
    "Resonance",
    "Schedule",
    "Spec",
    "Table",
    "Yarn",
    "compute",
    "create",
    "describe",
    "from_rope_parameters",
    "label_of",
    "lookup",
    "names",
    "parse",
    "resolve",
    "to_dict",
]
