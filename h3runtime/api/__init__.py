"""The HTTP service: bodies in, jobs and health out, problem+json for everything that goes wrong. No torch.

    serve       the process: settings, signals, one app         service     what one server consists of
    app         the routes                                      layers      around them: ids, browsers, keys, bodies
    body        JSON or a form, read as it comes                caller      who asks, and under which key
    answers     a job as clients see it (as_json)               estimates   what a request would take
    health      live, ready                                     problems    errors as clients see them
    routes      what is answered where                          openai      the same for OpenAI's clients
    openapi     what is read by hand, described; examples       reports     to metrics and callbacks

    idempotency  one job for one key       bells    what happens in threads, awaited on the loop
    disk         what a job may write      methods  which methods an address takes
    etags        who has the newest copy   signing  callbacks' signature and secret

`admission` makes a job of a body, or one error of everything that is wrong with it (`faults`). In its order:

    request     fields: types, ranges, one model a task; strict is the base of all bodies
    inputs      media: copies, measures, contents
    rules       between fields, by what the request alone says
    judging     with the media measured: guides, references, source, and the spec for the engine
    prompt      structured prompts: judged, assembled, linted
"""
