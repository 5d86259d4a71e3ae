"""What `h3runtime compare` does, in the order of its work.

kinds      what the two inputs are, and that they are of one kind
media      clips and folders of frames: their outlines, what makes them comparable, frame by frame and block by block
tensors    saved latents, and the latents of every step
found      what a comparison found, as numbers
limits     thresholds of scripts
report     the line of JSON
table      the same for a person
plot       the same as a picture
"""
