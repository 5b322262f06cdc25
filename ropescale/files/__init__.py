"""Reading and writing files so that nothing is lost: atomic writes, locks, staging, bounded reading."""
