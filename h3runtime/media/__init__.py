"""Pictures in, clips and sounds out: everything that opens a picture or starts ffmpeg. numpy in and out, no torch.

    in         pictures, data_url; `intake` for the clips and sounds that somebody sent
    fitting    vision_size
    sound      sound (a clip's own), joining (a chain's)
    formats    what a delivered file may be, and which ffmpeg can make it
    out        mux, encode_command, encoder_faults, retiming, colour, frames; delivery gives files their names; lossless
               is both written and read by us
    programs   ffmpeg finds it; process and worker run it and end it
    read back  probe (what was made, counted), clip_stream, frame_folder
    judged     checks, tile_grid (does it look broken?); agreement, similarity, log_mel (how far apart are two?)

Fed by `api` and the command line with files of requests, by `engine` with what it made.
"""
