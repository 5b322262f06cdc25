"""Reads and patches GGUF files for llama.cpp."""
