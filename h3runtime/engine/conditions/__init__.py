"""A request's media as conditions of its run.

    gathering       all of them, in the order of the packed sequence
    guides          what is anchored on the target's clock: first and last frame, continued clips, keyframes
    references      what the clip shall be made after
    sources         what is kept, and by which masks
    media_encoder   one medium -> latents, each content once
    media_cache     what has been encoded lately
    sound_cut       how much of a sound is encoded
    mask_pixels     a mask picture or clip as the denoiser reads it
    told_inputs     what diagnostics say of them

Asked by `resident`.
"""
