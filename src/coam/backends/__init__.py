"""Ways to run a network: one face, the same results within a stated tolerance, different speed."""
