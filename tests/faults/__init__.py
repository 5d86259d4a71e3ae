"""Things that go wrong around a real server process, and what must be left of its jobs, files and processes afterwards.

`cases` are run by pytest (each twice; a test module for a third of them, since that is what two workers can share) and
by `benchmarks/faults.py` (as often as asked).
"""
