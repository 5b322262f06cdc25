"""Measuring: options, preparation, batches, variants of a model, progress."""
