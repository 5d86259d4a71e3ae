"""The HTTP service: bodies in, jobs and health out, problem+json for everything that goes wrong. No torch."""
