"""Files that are whole or not there at all: atomic writes, the crash-safe pair journal, matches on disk."""
