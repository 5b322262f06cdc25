"""What is measured on: texts, documents, windows, and marks on their tokens."""
