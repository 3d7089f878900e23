"""Training: recipes, the objective, the loop and its checkpoint."""
