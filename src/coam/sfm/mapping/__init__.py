"""From tracks to a model: incremental or global mapping, loop closure, bundle adjustment, checks."""
