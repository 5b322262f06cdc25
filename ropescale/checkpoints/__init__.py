"""Checkpoints on disk: finding, patching, restoring, uploading."""
