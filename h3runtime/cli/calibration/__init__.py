"""What `h3runtime calibrate` is made of.

prompts     the file of prompts -> raw requests
size        of the clips
made        what the engine made, and how far it is from the exact clip
making      a clip's latents by the engine, and two of them compared on its device
similarity  SSIM of frames on a device
trials      clips of one choice against the exact ones, clip by clip, recorded as they come
search      the fastest choice that keeps a level's promise, by as few clips as that takes
ladder      how wide a threshold of step reuse may be
narrowing   what of all candidates the operator wants tried
outlook     what is being made, and how long all of it will take
proving     what was found as evidence
running     all of it, engines loaded and closed
"""
