"""Recommends a schedule for a model and a text: candidates, successive halving, and a decision on held-out text."""
