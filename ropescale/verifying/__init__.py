"""Verifies that a model uses the intended frequencies."""
