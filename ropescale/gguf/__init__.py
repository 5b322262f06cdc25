"""GGUF files: reading and patching them for llama.cpp."""
