"""The work of `generate`: from flags and a file of requests to clips.

    flags, file_kinds   what flags say, as a request
    entries             the requests: from flags, from a file, or a list of them
    judging             one request -> a spec, by the rules of `POST /generate`
    links, chain_plan   a list of requests -> the specs of a chain
    scratch             where what is unfinished lies
    chain_result        what became of a chain, as JSON

Torch is not imported here; the command imports the engine once everything is judged.
"""
