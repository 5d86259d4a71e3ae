"""h3-nano: the little world that the embedded model was trained on, its judge, and the training.

`world` draws scenes, `pictures` and `sounds` make them visible and audible, `captions` says them in words, `judge`
reads them back from frames and samples. Imported by the command line, the benchmarks and the tests; the service and the
engine know nothing of it: to them the embedded model is a checkpoint set like any other.
"""
