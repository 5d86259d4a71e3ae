"""What is answered under which address, one file an audience.

    generate   POST /generate, POST /estimate
    jobs       /jobs and what lies below one
    health     /live, /ready, /metrics and the aliases of probes
    get        what all of them are made with

Each has one `add_*(app, service)`, which `app` calls. Handlers read a request, ask the `Service`, and word the answer.
"""
