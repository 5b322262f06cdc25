"""What a ``config.json`` says about rotary embeddings, and how a new scaling is written into it."""
