"""Reports for people: HTML, text, comparison of two runs."""
