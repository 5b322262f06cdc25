"""Checkpoints on disk: locating, loading, patching, saving, restoring."""
