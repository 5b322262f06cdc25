"""Verifying: which frequencies a model should have, and proof that they are the ones it uses."""
