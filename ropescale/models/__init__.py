"""Models in memory: loading them, finding their rotary modules, patching."""

from ..configs.class_defaults import installed

installed()  # older versions of transformers lack names that these modules import
