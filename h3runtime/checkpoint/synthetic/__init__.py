"""Checkpoints that are made up and not trained: sets in the published layouts, tiny or at the published sizes.

    layouts: names and shapes       recipes: values       storage, published: how they are kept
        made_files       the four files of a set as plans
            tiny         the smallest set, for the tests
            adapters     LoRA in each public layout
            synthesis    the sets of `h3runtime synth`, by full_size where they are large

It writes with `checkpoint.writer`; what reads and loads knows nothing of it.
"""
