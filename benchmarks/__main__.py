"""`python -m benchmarks` is `python -m benchmarks.speed`."""

from benchmarks.speed import main

if __name__ == "__main__":
    main()
