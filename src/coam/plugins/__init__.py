"""coam inside other programs: a module here is imported by users of that program only."""
