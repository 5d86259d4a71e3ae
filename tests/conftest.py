"""One thread for numeric libraries, set before any is loaded: small tensors gain nothing from two, and two threads that
wait for each other on a busy machine made single tests take a minute."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
