"""The lookup of known vulnerabilities, with a database of our own."""

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

import audit


@contextmanager
def database(answer, status=200):
    """Serve one answer to every query; yield the address and the queries that came."""
    queries = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            queries.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *arguments):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", queries
        server.shutdown()
        thread.join()


def test_it_names_the_packages_with_vulnerabilities():
    with database({"results": [{}, {"vulns": [{"id": "PYSEC-1"}, {"id": "GHSA-2"}]}]}) as (address, queries):
        found = audit.vulnerabilities({"good": "1.0", "bad": "2.0"}, address)
    assert found == {"bad==2.0": ["PYSEC-1", "GHSA-2"]}
    assert queries[0]["queries"][1] == {"package": {"name": "bad", "ecosystem": "PyPI"}, "version": "2.0"}


def test_an_accepted_vulnerability_is_left_out(monkeypatch):
    monkeypatch.setitem(audit.ACCEPTED, "PYSEC-1", "not reachable from here")
    with database({"results": [{"vulns": [{"id": "PYSEC-1"}]}]}) as (address, _):
        assert audit.vulnerabilities({"bad": "2.0"}, address) == {}


@pytest.mark.parametrize(("answer", "status"), [({"results": []}, 200), ({}, 200), ({}, 500)])
def test_a_database_that_cannot_be_read_is_no_failure(monkeypatch, capsys, answer, status):
    with database(answer, status) as (address, _):
        monkeypatch.setattr(audit, "vulnerabilities", lambda pins, ask=audit.vulnerabilities: ask(pins, address))
        audit.main()
    assert "not checked" in capsys.readouterr().out


def test_a_vulnerability_fails_the_check(monkeypatch, capsys):
    monkeypatch.setattr(audit, "vulnerabilities", lambda pins: {"bad==2.0": ["PYSEC-1"]})
    with pytest.raises(SystemExit, match="1"):
        audit.main()
    assert "bad==2.0: PYSEC-1" in capsys.readouterr().out
