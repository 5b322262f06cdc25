"""Measuring: batches, forward passes, memory, progress, resuming."""
