"""Sharing a measurement out over processes and devices."""
