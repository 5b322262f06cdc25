"""Models in memory: loading them, finding their rotary modules, patching."""

from ..configs.class_defaults import installed

installed()  # an older transformers lacks names that these modules import
