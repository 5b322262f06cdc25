"""Reads the rotary geometry from a ``config.json``, and writes a new scaling into a copy."""
