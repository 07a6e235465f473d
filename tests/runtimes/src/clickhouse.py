"""Serves ClickHouse's HTTP protocol on a Unix socket over the engine in a chdb wheel, for tests.

The wheels of older ClickHouse releases have no C calls for the embedded binding, but Python can load them. Tests then use
the client of production on those releases. Statements run one at a time, each with the settings of its own request.
Statements that take no rows from a request's body are also written to the log, a JSON document a line.

Usage: python3 -I -S clickhouse.py WHEEL DATA SOCKET LOG, where WHEEL is the unpacked wheel. It ends when its standard
input does.
"""

import importlib
import json
import os
import re
import socketserver
import sys
import threading
import types
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qsl, urlsplit

WHEEL, DATA, SOCKET, LOG = sys.argv[1:]

# Names of the protocol that are no settings.
IGNORED = {"compress", "decompress", "password", "query_id", "user", "wait_end_of_query"}

INSERT_OF_ROWS = re.compile(r"\s*INSERT\s+INTO\s.*\sFORMAT\s+\w+\s*$", re.IGNORECASE | re.DOTALL)
FORMAT = re.compile(r"\sFORMAT\s+(\w+)\s*$", re.IGNORECASE)


def loaded():
    """Returns the engine's module. The package around it imports pandas and pyarrow, which the engine does not need."""
    if sys.implementation.name != "cpython" or sys.version_info < (3, 9):
        sys.exit(
            "the ClickHouse releases of the tests are wheels for CPython 3.9 or newer, and "
            f"python3 is {sys.implementation.name} {sys.version.split()[0]}: put a newer python3 first in PATH"
        )
    package = types.ModuleType("chdb")
    package.__path__ = [os.path.join(WHEEL, "chdb")]
    sys.modules["chdb"] = package
    return importlib.import_module("chdb._chdb")


class Engine:
    """One connection, because connections of the 25.8 wheel share their settings."""

    def __init__(self):
        self.connection = loaded().connect(DATA)
        self.lock = threading.Lock()
        self.log = open(LOG, "a", encoding="utf-8")

    def run(self, sql, output_format="TabSeparated"):
        return self.connection.query(sql, output_format).bytes()

    def answer(self, sql, database, output_format, settings, rows):
        with self.lock:
            if rows is None:
                document = {"sql": sql, "database": database, "settings": settings}
                self.log.write(json.dumps(document) + "\n")
                self.log.flush()
            applied = []
            self.run(f"USE `{database}`")
            try:
                for name, value in settings.items():
                    text = value.replace("\\", "\\\\").replace("'", "\\'")
                    self.run(f"SET {name} = '{text}'")
                    applied.append(name)
                return self.insert(sql, rows) if rows is not None else self.run(sql, output_format)
            finally:
                for name in applied:
                    self.run(f"SET {name} = DEFAULT")

    def insert(self, sql, rows):
        if not rows:
            return b""
        # Rows go through a file and not through the statement, which would end at a blank line in the rows.
        path = os.path.join(DATA, "..", "rows")
        with open(path, "wb") as file:
            file.write(rows)
        at = FORMAT.search(sql).start()
        return self.run(f"{sql[:at]} FROM INFILE '{path}' {sql[at:]}")


class Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def body(self):
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def answer(self, status, body, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = self.body()
        given = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        sql = given.pop("query", "")
        database = given.pop("database", "") or "default"
        output_format = given.pop("default_format", "TabSeparated")
        settings = {name: value for name, value in given.items() if name not in IGNORED}
        rows = None
        if INSERT_OF_ROWS.match(sql):
            rows = body
        else:
            sql += body.decode()
        try:
            found = ENGINE.answer(sql, database, output_format, settings, rows)
        except Exception as error:  # pylint: disable=broad-except
            text = str(error)
            code = re.match(r"Code: (\d+)", text)
            self.answer(500, text.encode(), X_ClickHouse_Exception_Code=code[1] if code else "1002")
        else:
            self.answer(200, found)

    do_GET = do_POST


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128

    def get_request(self):
        connection, _ = super().get_request()
        return connection, ("test", 0)

    def handle_error(self, request, client_address):
        """A client that leaves is not an error."""


def end_with_the_test():
    sys.stdin.buffer.read()
    # A return would unload the engine while its threads run.
    os._exit(0)


if __name__ == "__main__":
    ENGINE = Engine()
    server = Server(SOCKET, Request)
    threading.Thread(target=end_with_the_test, daemon=True).start()
    print(ENGINE.run("SELECT version()").decode().strip(), flush=True)
    server.serve_forever()
