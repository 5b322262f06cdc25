"""The built-in schedules; related ones share a file. Importing this package needs neither torch nor transformers.

To add a schedule, define a class in a file of this folder, import it here, and add a row to docs/schedules.md and a
test case.
"""

# isort: off
# The order of these imports is the order of `names()` and of the table in docs/schedules.md.
from .as_is import AsIs as AsIs, from_rope_parameters as from_rope_parameters
from .interpolation import Base as Base, Linear as Linear
from .base_change import (
    Ntk as Ntk,
    NtkSu as NtkSu,
    NtkMixed as NtkMixed,
    NtkCritical as NtkCritical,
    Abf as Abf,
    Dynamic as Dynamic,
)
from .by_parts import NtkByParts as NtkByParts, Yarn as Yarn, DynamicYarn as DynamicYarn
from .longrope import LongRope as LongRope
from .llama3 import Llama3 as Llama3
from .clipping import Proportional as Proportional, Giraffe as Giraffe, Cope as Cope
from .resonance import Resonance as Resonance
from .table import Table as Table
# isort: on

from .base import (
    BuiltIn as BuiltIn,
    Frequencies as Frequencies,
    Schedule as Schedule,
    compute as compute,
    label_of as label_of,
    lookup as lookup,
    names as names,
)
from .specs import (
    Spec as Spec,
    create as create,
    describe as describe,
    parse as parse,
    resolve as resolve,
    to_dict as to_dict,
)
