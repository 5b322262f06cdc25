"""The ways of searching."""
