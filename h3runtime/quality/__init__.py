"""Quality levels: what they mean, what was measured of them, and when that counts for a request. No torch.

    levels      the table: what each level promises and may choose; the candidates of a machine
    bucket      which requests a measurement speaks for
    distances   how far a clip is from the exact one
    bounds      what a sample says of the mean, 95 times of 100
    evidence    one measurement as a file: written, and read strictly
    shelf       all evidence that a process has, its own and the package's

`h3runtime calibrate` makes evidence; `api` asks the shelf, at admission and for `/ready`.
"""
