"""`python -m coam` is `coam`."""

from coam.cli import main

if __name__ == "__main__":
    main()
