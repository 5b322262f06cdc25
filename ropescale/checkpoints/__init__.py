"""Checkpoints on disk: finding, patching, saving, restoring, uploading."""
