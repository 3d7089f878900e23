"""Which pairs may carry a model: two-view geometry, focal lengths, rotation cycles, path consistency."""
