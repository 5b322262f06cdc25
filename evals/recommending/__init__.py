"""Recommending a schedule for a model and a text: candidates, successive halving, a decision on held-out text."""
