"""Training under a schedule: the callback for transformers' Trainer, collators, and the short adaptation itself."""
