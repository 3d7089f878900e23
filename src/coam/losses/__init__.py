"""Losses: pure functions of tensors, no network inside."""
