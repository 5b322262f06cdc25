"""The schedules, one paper per file. Standard library only: importing this imports neither torch nor transformers.

To add one: a file in this folder, a line here, a row in docs/schedules.md, a case in the tests.
"""

from __future__ import annotations

# isort: off
# In the order of the table in docs/schedules.md, which is the order of `names()`.
from .as_is import AsIs as AsIs
from .as_is import from_rope_parameters as from_rope_parameters
from .plain import Base as Base
from .linear import Linear as Linear
from .ntk import Ntk as Ntk
from .ntk_su import NtkSu as NtkSu
from .ntk_mixed import NtkMixed as NtkMixed
from .ntk_critical import NtkCritical as NtkCritical
from .abf import Abf as Abf
from .dynamic import Dynamic as Dynamic
from .ntk_by_parts import NtkByParts as NtkByParts
from .yarn import Yarn as Yarn
from .dynamic_yarn import DynamicYarn as DynamicYarn
from .longrope import LongRope as LongRope
from .llama3 import Llama3 as Llama3
from .proportional import Proportional as Proportional
from .giraffe import Giraffe as Giraffe
from .cope import Cope as Cope
from .resonance import Resonance as Resonance
from .table import Table as Table
# isort: on

from .base import BuiltIn as BuiltIn
from .base import Frequencies as Frequencies
from .base import Schedule as Schedule
from .base import compute as compute
from .base import label_of as label_of
from .base import lookup as lookup
from .base import names as names
from .specs import Spec as Spec
from .specs import create as create
from .specs import describe as describe
from .specs import parse as parse
from .specs import resolve as resolve
from .specs import to_dict as to_dict
