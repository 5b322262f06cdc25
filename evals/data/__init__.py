"""Texts, documents, windows, and token masks."""
