"""Models in memory: patching, verifying, loading, decoding."""
