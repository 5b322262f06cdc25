"""Models in memory: patching, verifying, loading, decoding."""

from ..configs.class_defaults import installed

installed()  # an older transformers lacks names that these modules import
