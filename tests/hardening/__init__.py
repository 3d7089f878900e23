"""A break-in trial that anybody can repeat: attacks are generated, run in processes with limits, and counted.

`make test-attacks` runs all of them and prints the counts; `test_attacks.py` runs a few of every family.
"""
