"""What is measured, how, and what came of it.

    *.json                the contracts: one canonical workload each, named like the file
    contract, result      what a contract and a result are; `schema/` holds the same as JSON Schema
    compare               judges a result: did it run what the contract says, is it slower than before
    measure               runs a contract on this machine and writes a result
    loading               how fast a checkpoint's bytes come in, and what they take of the machine
    machine, schemas      facts about this machine; writes `schema/`

Scripts are run from a checkout: `python benchmarks/compare.py --result R.json`. They import `h3runtime`, never the
reverse. LOG.md tells what was measured so far.
"""
