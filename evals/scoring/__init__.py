"""Scoring: one loss per token, in batches that fit into memory."""
