"""What can be measured: our models, classical baselines, learned peers, by name."""
