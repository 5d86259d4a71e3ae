"""Things that go wrong around a real server process, and what must be left of its jobs, files and processes afterwards.

`cases` are run by pytest (`test_faults`, each twice) and by `benchmarks/faults.py` (as often as asked).
"""
