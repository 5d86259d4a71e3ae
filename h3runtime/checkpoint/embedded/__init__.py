"""h3-nano as checkpoint sets: the package's masters -> the published files, made at first use into the user's cache.

    adopting             what a training left -> masters, once
    masters, listing     four small safetensors files, a tokenizer and their list in the package
        formats      which published file holds which master, and how it is stored
            deriving     master -> tensors of one file
                sets         whole sets in the cache: only what isn't there, every byte known beforehand
                export       a set in a folder of one's own
    adapters             those that were distilled from the masters, beside them in the package

`python -m h3runtime.checkpoint.embedded` writes the list, `derived.json`, after the masters or the code changed, with
`--from RUN` after it has taken the masters from a training's folder. It reads the masters' folder by path and knows
nothing of `nano`, which trains them.
"""
