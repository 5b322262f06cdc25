"""Reads rotary embeddings from a ``config.json``, and writes a new scaling into it."""
