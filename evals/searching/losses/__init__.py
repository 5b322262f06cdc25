"""Losses of windows under tables, and their gradients."""
