"""Speed and memory, one command each; nothing here is part of the package."""
