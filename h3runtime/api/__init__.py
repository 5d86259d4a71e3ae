"""The HTTP service: bodies in, jobs and health out, problem+json for everything that goes wrong. No torch.

    serve       the process: settings, signals, one app         service     what one server consists of
    app         the routes                                      requests    around them: ids, logs, counts
    limits      how large a body may be                         body        JSON or a form, read as it comes
    answers     a job as clients see it                         health      live, ready
    problems    errors as clients see them                      openapi     what is read by hand, described; examples

`admission` makes a job of a body, or one error of everything that is wrong with it (`faults`). In its order:

    request     fields: types, ranges, one model a task; strict is the base of all bodies
    inputs      media: copies, measures, contents
    rules       between fields, by what the request alone says
    judging     with the media measured: guides, references, source, and the spec for the engine
    prompt      structured prompts: judged, assembled, linted
"""
