"""Step reuse: which steps of a run are not computed, and what stands in their place.

    rule         pure decisions: the window of a run, and what must stay below the threshold
    change       how far one tensor is from another, on the latents' device
    forecast     velocities of computed steps -> a velocity for a step that isn't computed
    latents      `easycache` and `h3_cache`: a network that compares what it is shown
    first_block  `first_block`: a network that compares what its first block makes
    wrapping     settings -> such a network around another one
    log          which steps were reused, and the changes that were seen
    outlook      how many steps a schedule is likely to reuse, for estimates

Reuse is a network around the network: what the sampler asks for is an estimate at its own x and sigma, computed or not,
so a multistep sampler's history stays pairs of a sigma and the estimate there, and masks, carry and guides are applied
to a reused step as to any other. A run without reuse touches nothing here.
"""
