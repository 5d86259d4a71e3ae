"""Clips and sounds that somebody sent, read as a stranger's files: bounded, by their timestamps, upright.

    containers         opens a file of a kind that is meant, refuses all others by name
    first_picture      the zero of a file's clock, for pictures and sound alike
    decoding           packets -> pictures, and when a damaged stream is given up
    turning            display matrix and pixels that aren't square
    moving_picture     animated WebP, GIF, PNG, AVIF
    clip_pictures      pictures as they are decoded, each with its time      } what both the judge
    sound_pieces       sound as it is decoded, placed on the clock           } and the job read with
    clip_clock         which picture is seen in which 24th of a second
    clip_frames        -> frames at 24 fps on a canvas, for the engine
    sound_in           -> 32 kHz stereo, for the engine
    examine            all media of a request judged in a child process, `examiner`
    packet_measure     what a file's packets say it holds; packet_span their ends
    full_measure       what it really holds, decoded

Fed with files that `api` keeps a copy of; read by `api` (`examine`) and by `engine`. Still pictures are
`media.pictures`' part.
"""
