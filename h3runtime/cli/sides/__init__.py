"""What `h3runtime compare --a SIDE --b SIDE` does, in the order of its work.

given        a side as it was written: fields of a request and settings
asked        the request that both sides share, and each side's own, judged by the rules of `POST /generate`
engines      which engine makes which side: one for both where the loaded weights serve both
making       a side -> its clip, its latents, every step's latents, and its frames without loss
steps        how far the latents of both are apart, step by step
attribution  where blocks part: both sides' blocks on the same input
parts        one block in its parts, each of which gets what the other side's part got
spool        a side's blocks in files, for sides that don't fit into memory together
clips        how far the decoded clips are apart, frame by frame and by spans of sound
found        what was found, as numbers
report       the JSON
table        the same for a person
paper        pens for the plot and the film
chart        the same as a picture
film         A, B and their difference side by side, with sound
"""
