"""Distributes a measurement over processes and devices."""
