"""A real HTTP server on the loopback interface, well-behaved or not."""

import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Answer:
    """What the server does when it is asked for a path."""

    content: bytes
    status: int = 200
    cut_after: int | None = None
    length_given: bool = True
    encoding: str | None = None
    redirect: str | None = None
    wait: threading.Event | None = None
    """After the first bytes the rest waits for this."""


class Server:
    def __init__(self, address):
        self.address = address
        self.answers = {}
        self.asked = []

    def url(self, path):
        return f"{self.address}/{path}"


@contextmanager
def serving():
    """A server on a free port of 127.0.0.1; what it answers can be changed at any time."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            path = self.path.removeprefix("/")
            server.asked.append(path)
            answer = server.answers.get(path, Answer(b"no such file", status=404))
            self.send_response(answer.status)
            if answer.redirect:
                self.send_header("Location", answer.redirect)
            if answer.encoding:
                self.send_header("Content-Encoding", answer.encoding)
            if answer.length_given:
                self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            half = len(answer.content) // 2 if answer.wait else 0
            self.wfile.write(answer.content[:half])
            if answer.wait:
                answer.wait.wait(timeout=30)
            self.wfile.write(answer.content[half : answer.cut_after])
            self.wfile.flush()
            if answer.cut_after is not None:
                self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

        def log_message(self, *arguments):
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = Server(f"http://127.0.0.1:{httpd.server_port}")
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()
