"""A client of a running server: the standard library's HTTP, typed answers, nothing of the service itself.

    address      where a server is: http or https, a base path, IPv6
    wire         one request and its answer, or an error in one line
    form         a multipart body that is read from disk while it is sent
    events       the lines of an event stream -> events
    watching     a job followed to its end, through lost connections and restarts of the server
    downloading  a clip onto this disk: resumed where it broke off, checked, renamed into place
    client       `Client`, which is all of it

Proxies of the environment are not used and redirects not followed: a request goes where it was told to, or fails. Read
by the command line; whoever writes a tool of their own imports `Client` from here.
"""

from h3runtime.client.client import Client, Prefer
from h3runtime.client.errors import BrokenDownload, ClientError, Refused, Unreachable
from h3runtime.client.events import Event
from h3runtime.client.job import RemoteJob

__all__ = ["BrokenDownload", "Client", "ClientError", "Event", "Prefer", "Refused", "RemoteJob", "Unreachable"]
