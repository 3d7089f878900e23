"""`python -m coam.app.talkative ...` is `coam ...` that says every second how far it is."""

from coam import progress
from coam.cli import main

if __name__ == "__main__":
    progress.FIRST_LINE, progress.EVERY_SHARE = 1.0, 0.0
    main()
