"""Pictures in, clips and sounds out: everything that opens a picture or starts ffmpeg. numpy in and out, no torch."""
