"""The built-in schedules; related ones share a file. Importing this package needs neither torch nor transformers.

To add a schedule, define a class in a file of this folder, import it here, and add a row to docs/schedules.md and a
test case.
"""

from __future__ import annotations

# isort: off
# The order of these imports is the order of `names()` and of the table in docs/schedules.md.
from .as_is import AsIs as AsIs
from .as_is import from_rope_parameters as from_rope_parameters
from .interpolation import Base as Base
from .interpolation import Linear as Linear
from .base_change import Ntk as Ntk
from .base_change import NtkSu as NtkSu
from .base_change import NtkMixed as NtkMixed
from .base_change import NtkCritical as NtkCritical
from .base_change import Abf as Abf
from .base_change import Dynamic as Dynamic
from .by_parts import NtkByParts as NtkByParts
from .by_parts import Yarn as Yarn
from .by_parts import DynamicYarn as DynamicYarn
from .longrope import LongRope as LongRope
from .llama3 import Llama3 as Llama3
from .clipping import Proportional as Proportional
from .clipping import Giraffe as Giraffe
from .clipping import Cope as Cope
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
