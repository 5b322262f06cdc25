"""Scoring by servers: token ids go out, and the log-probability of each comes back."""
