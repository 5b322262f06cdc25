"""Texts, documents, windows, and marks on their tokens."""
