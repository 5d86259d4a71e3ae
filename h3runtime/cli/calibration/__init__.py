"""What `h3runtime calibrate` is made of.

prompts     the file of prompts -> raw requests
making      a clip by the engine, as arrays
trials      clips of one choice against the exact ones, clip by clip, recorded as they come
search      the fastest choice that keeps a level's promise
proving     what was found as evidence
running     all of it, engines loaded and closed
"""
