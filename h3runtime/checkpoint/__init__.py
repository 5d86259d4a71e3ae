"""Files on disk -> tensors under the model's own names: strict reading, strict loading.

    header, tensor_file           one safetensors file: judged, read
    sources, index                a path -> the files of one component
    entries, rearrange            a stored tensor as spans of files; rows in another order
    renaming                      other layouts' names -> ours
    formats, markers, legacy      the weight formats, and where a file tells which of its layers has which
    layers                        the quantised layers, and the shapes that a model sees
    qkv_order, _rows, _statistics in which order the rows of fused q, k and v are
    file                          all of the above: a component, open and judged
    families, partition           what a file is; which of the two transformers its name says
    blocks, stream                bytes in the order of the disk, hashed on the way
    hashing, expected, verify     remembered digests, digests told beside a file, and what to make of both
    assemble, rules, load         tensors -> stored weights -> a model
    lora                          adapters: what they change of a transformer
    report                        what `inspect` tells of a file
    writer                        the other way: a safetensors file
    synthetic, synthetic_mark     checkpoints that are made up, and their mark
    embedded, model_name          h3-nano, derived from the package's masters, and its mark
    checkpoint_set                everything that an engine loads, as paths

Used by `engine` and the command line.
"""
