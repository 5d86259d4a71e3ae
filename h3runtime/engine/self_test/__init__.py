"""The start-up self-test: known answers asked of every enabled kernel on this machine, after the weights are there and
before the first clip is made.

    check       one question: a kernel, a shape, an error and what bounds it
    attention   around 65,536 rows and 2^31 elements, where indices overflow
    linear      a product of the loaded weights, with odd numbers of rows
    packing     activations as NVFP4, byte for byte
    fc2         the one schedule of cuBLASLt that FC2 may have
    fused       what lies between the products of a block
    video       what lies between those of the video decoder, and the convolutions of the encoder
    encoder     the first layers of the text encoder beside the same in FP64
    identity    everything of a machine, its libraries and what is loaded that an answer may depend on
    record      what passed on it before, on disk, so that a restart asks nothing again
    enabled     what an engine would run, and so what is asked
    proving     asks, and remembers
    verdict     what becomes of a kernel that failed

Decides nothing about a clip and needs no request. Asked by `resident`; shown by `/ready`.
"""
