"""Resuming: finished batches on disk, and the hashes by which a later run knows that they are its own."""
