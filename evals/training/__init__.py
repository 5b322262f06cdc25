"""Training with a schedule: the callback for transformers' Trainer, what it proves and what it measures."""
