"""Reads t.rows of the test through PyPI's clickhouse-connect and clickhouse-driver's block reader."""

import datetime
import io
import sys
import urllib.request
from decimal import Decimal

port, password = int(sys.argv[1]), sys.argv[2]
QUERY = (
    "SELECT id, name, tags, hist, at, maybe, pair, fixed, money, kind FROM t.rows ORDER BY id"
)


def expected(i):
    at = datetime.datetime(1970, 1, 1) + datetime.timedelta(milliseconds=i)
    return (
        i,
        f"n{i % 7}",
        [None, f"t{i % 3}"],
        {i % 5: i},
        at,
        None if i % 2 == 0 else i / 4,
        (i % 256, str(i)),
        "abc",
        Decimal(i * 125) / 1000,
        "x" if i % 2 == 0 else "y",
    )


def normal(row):
    row = list(row)
    if row[4].tzinfo is not None:
        row[4] = row[4].astimezone(datetime.timezone.utc).replace(tzinfo=None)
    if isinstance(row[6], dict):
        row[6] = tuple(row[6].values())
    if isinstance(row[7], bytes):
        row[7] = row[7].decode()
    return tuple(row)


def check(rows, what):
    rows = [normal(row) for row in rows]
    assert len(rows) == 100_000, (what, len(rows))
    for i in (*range(1000), *range(99_000, 100_000)):
        assert rows[i] == expected(i), (what, rows[i], expected(i))


import clickhouse_connect

client = clickhouse_connect.get_client(
    host="localhost", port=port, username="reader", password=password, database="t"
)
check(client.query(QUERY).result_rows, "clickhouse-connect")
assert client.query("SELECT {n: UInt8} AS n", parameters={"n": 7}).result_rows == [(7,)]
assert client.query("SELECT 1 WHERE 0").result_rows == []
try:
    client.command("DROP TABLE t.rows")
except clickhouse_connect.driver.exceptions.DatabaseError as error:
    assert "not allowed" in str(error), error
else:
    raise AssertionError("a reader dropped a table")

# clickhouse-driver speaks the binary protocol; its block reader is what decodes Native.
from clickhouse_driver.block import BlockInfo
from clickhouse_driver.bufferedreader import BufferedReader
from clickhouse_driver.context import Context
from clickhouse_driver.connection import ServerInfo
from clickhouse_driver.streams.native import BlockInputStream

REVISION = 54_460


class BytesReader(BufferedReader):
    def __init__(self, data):
        self.source = io.BytesIO(data)
        super().__init__(1 << 20)

    def read_into_buffer(self):
        piece = self.source.read(1 << 20)
        if not piece:
            raise EOFError
        self.buffer = bytearray(piece)
        self.current_buffer_size = len(piece)


request = urllib.request.Request(
    f"http://localhost:{port}/?client_protocol_version={REVISION}&default_format=Native",
    data=QUERY.encode(),
    headers={"X-ClickHouse-User": "reader", "X-ClickHouse-Key": password},
)
data = urllib.request.urlopen(request).read()
context = Context()
context.settings = {}
context.client_settings = {
    "strings_as_bytes": False,
    "strings_encoding": "utf-8",
    "use_numpy": False,
    "opentelemetry_traceparent": None,
    "opentelemetry_tracestate": "",
    "quota_key": "",
    "input_format_null_as_default": False,
    "namedtuple_as_json": True,
    "server_side_params": False,
}
context.server_info = ServerInfo("test", 26, 7, 0, REVISION, "UTC", "test", REVISION)
stream = BlockInputStream(BytesReader(data), context)
rows = []
while True:
    try:
        rows.extend(stream.read().get_rows())
    except EOFError:
        break
check(rows, "clickhouse-driver")
print("connect ok, driver ok")
