"""Scores token ids by servers, which return their log-probabilities."""
