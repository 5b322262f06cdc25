"""Measuring: options, documents, passes, and the tasks that score them."""
