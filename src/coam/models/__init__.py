"""Networks and what they give back."""
