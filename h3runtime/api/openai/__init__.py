"""The videos API as OpenAI's clients speak it, over the same jobs as `/generate`.

    brackets   parts of a form -> the JSON that they mean
    creation   their fields and ours -> a request of `POST /generate`
    video      a job -> a `video`
    described  what OpenAPI tells of both
    routes     /v1/videos

Nothing is judged here that `/generate` judges: a request is put into its words, and what is wrong with it is told under
the names that the client used. Read by `app`.
"""

from h3runtime.api.openai.routes import add_openai

__all__ = ["add_openai"]
