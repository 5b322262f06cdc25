"""Scores token ids with servers that return log-probabilities."""
