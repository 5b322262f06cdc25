"""The metadata of a patched checkpoint: ``ropescale.json``, the model card, and the files that hold its new limits."""
