"""Finds and patches the rotary modules of loaded models."""

from ..configs.class_defaults import installed

installed()  # older versions of transformers lack names that these modules import
