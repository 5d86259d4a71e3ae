"""A request with its media measured -> what the engine is given, or everything that is wrong with it.

    twice           by what the media measure, then by what they hold: `admission` and `h3runtime generate` ask it
    clip            all of it, once
    resolve         the rules that need no media: task, canvas, length; `rules` has them one by one
    guides          first and last frame, keyframes; continuation: the end of another clip
    references      Ref2VA's, and the official limits on their length
    editing         source and masks
    sounds          how much of a measured sound is used
    partitions      whether the transformer that the task runs on is loaded
    spec            the judged request as a `GenerateSpec`

`rules` judges what the request alone says, this package what needs the measures of its media: each fault is told by one
of the two.
"""
