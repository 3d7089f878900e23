"""Networks in formats that run without torch."""
