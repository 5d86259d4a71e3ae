"""The media of a request, from the words that name them to what is known of their content.

    copies       one medium -> a file of our own and its hash, wherever the request says that it is
    fetching     one by URL; hosts: which URLs and addresses that may be
    job_clips    the clip of an earlier job, or its end
    opening      all of a request: copied, measured, and decoded to their end in a child process

A medium that can't be used is told of the field that names it, before a job exists. What is asked of a usable one
(lengths, sizes, how much is taken) is `judging`'s part. Fed by `admission` and the command line.
"""
