"""Adapters on disk -> what they change of a transformer, whichever layout they are in (checkpoint-formats §6).

    report      what `inspect` tells of a file
    stored      names and shapes of one file, sorted out; kinds that can't be applied are refused
    layout      which of the public layouts it is
    scales      alpha and rank of every layer: from tensors, from metadata, from the request
    contracts   what the published ones were trained for
    places      the transformer's layers under every name that adapters use
    binding     stored matrices -> layers and rows, every shape checked
    reading     the same as tensors on a device

Read by `engine.adapters`, which keeps them, and by `checkpoint.report`.
"""
