#!/usr/bin/env python3
"""Writes the fuzz targets' seeds from the golden messages of tests/fixtures/wire."""

import base64
import gzip
import hashlib
import json
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
WIRE = os.path.join(HERE, "..", "fixtures", "wire")


def wire(name):
    with open(os.path.join(WIRE, name + ".bin"), "rb") as file:
        return file.read()


def seed(target, name, data):
    folder = os.path.join(HERE, "seeds", target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data)


def post(call, body, headers=()):
    lines = [
        f"POST /epwatch.v1.CollectorService/{call} HTTP/1.1",
        "Host: fuzz",
        "Content-Type: application/proto",
        "Connect-Protocol-Version: 1",
        *headers,
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def h2_frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def h2_header(name, value):
    """A literal header without indexing or Huffman code."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def grpc(call, message, headers=(), compressed=False):
    head = b"".join(
        h2_header(name, value)
        for name, value in [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/epwatch.v1.CollectorService/" + call),
            (b":authority", b"fuzz"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
            *headers,
        ]
    )
    body = bytes([compressed]) + struct.pack(">I", len(message)) + message
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    return (
        preface
        + h2_frame(4, 0, 0, b"")
        + h2_frame(1, 4, 1, head)
        + h2_frame(0, 1, 1, body)
        + h2_frame(7, 0, 0, struct.pack(">II", 1, 0))
    )


def main():
    for name in ["upload_request", "report_full", "report_minimal", "recorded_reports"]:
        seed("request", name, wire(name))

    report = wire("report_minimal")
    texts = [b"boot", b"com.example.app", b"production"]
    record = bytes([1, 3]) + struct.pack("<qQ", 1_760_000_000_000, 5_000) + bytes(map(len, texts)) + b"".join(texts)
    seed("wal_record", "minimal", record + report)
    seed("wal_record", "full", record + wire("report_full"))
    seed("wal_record", "newer", b"\x02" + record[1:])

    seed("wal_segment", "whole", bytes([40, 7, 200, 1, 0, 90]) + b"\x00" * 6)
    seed("wal_segment", "damaged", bytes(range(1, 31)) + bytes([10, 0, 1, 100, 1, 255, 0, 2, 128] * 3 + [0, 0, 0]))

    upload = wire("upload_request")
    packed = gzip.compress(upload, mtime=0)
    seed("connection", "post", post("Upload", upload))
    seed("connection", "post_gzip", post("Upload", packed, ["Content-Encoding: gzip"]))
    seed("connection", "post_twice", post("Upload", b"") + post("DeleteInstallation", b"\x0a\x20" + b"s" * 32))
    seed("connection", "manifest", post("PutModelManifest", wire("model_manifest"), ["Connect-Timeout-Ms: 5000"]))
    seed("connection", "chunked", post("Upload", b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
         + b"4\r\nabcd\r\n0\r\n\r\n")
    seed("connection", "refused_then_garbage", post("Upload", b"").replace(b"application/proto", b"text/plain")
         .replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + b"4\r\nabcd\r\n0\r\n\r\n" + b"garbage: 1\r\n\r\n")
    seed("connection", "grpc", grpc(b"Upload", upload))
    seed("connection", "grpc_gzip", grpc(b"Upload", packed, [(b"grpc-encoding", b"gzip")], compressed=True))
    seed("connection", "grpc_timeout", grpc(b"PutCertifiedPlacement", b"", [(b"grpc-timeout", b"5S")]))

    def engine(name, url, body="", content_type="", credentials=""):
        seed("engine_request", name, "\n".join([url, content_type, credentials, body]).encode())

    engine("select", "database=epwatch&param_n=7", "SELECT {n: UInt8} FROM reports FORMAT JSON", "", "Basic dTpw")
    engine("insert", "query=INSERT+INTO+t+(a)+FORMAT+RowBinary&decompress=1&insert_deduplication_token=x", "rows")
    engine("values", "", "INSERT INTO t (a, b) VALUES (1, 'it''s'), (2, $$x$$)")
    engine("quotes", "default_format=TSV&readonly=0", "/* c */ SELECT `a`, \"b\" -- x\n FROM file('/etc/passwd')", "",
           "localhost:8123")
    engine("with", "max_execution_time=5&session_id=s", "WITH x AS (SELECT 1) SELECT * FROM x INTO OUTFILE '/tmp/x'")
    form = "--b\r\nContent-Disposition: form-data; name=\"query\"\r\n\r\nSELECT 1\r\n--b--"
    engine("form", "client_protocol_version=54460", form, "multipart/form-data; boundary=b")

    lz4 = bytes([0x50]) + b"hello"
    seed("engine_compressed_rows", "lz4", bytes([3, 0x82, 5, 0, 0]) + lz4)
    seed("engine_compressed_rows", "none", bytes([200, 0x02, 5, 0, 0]) + b"hello")

    def text(value):
        return bytes([len(value)]) + value

    block = bytes([2, 3])
    block += text(b"id") + text(b"UInt64") + struct.pack("<QQQ", 1, 2, 3)
    block += text(b"name") + text(b"String") + text(b"a") + text(b"") + text(b"ccc")
    seed("engine_native_blocks", "plain", bytes([7, 4]) + block)
    block = bytes([2, 2])
    block += text(b"m") + text(b"Array(UInt16)") + struct.pack("<QQ", 1, 3) + struct.pack("<HHH", 1, 2, 3)
    block += text(b"n") + text(b"Nullable(Float64)") + bytes([0, 1]) + struct.pack("<dd", 0.5, 0)
    seed("engine_native_blocks", "nested", bytes([255, 0]) + block)

    files()
    gate()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def sealed(data):
    return data + struct.pack("<I", crc32c(data))


def files():
    """What the collector, a backup and the SDK keep, and what they are given."""
    checkpoint = lambda offset, end: sealed(b"EPWCKPT\x01" + b"\x07" * 16 + struct.pack("<QQQI", offset, 9, end, 0))
    seed("wal_checkpoint", "one", checkpoint(640, 960))
    seed("wal_checkpoint", "two", checkpoint(1280, 1280) + checkpoint(640, 960))
    wal_id = b"07" * 16
    seed("wal_checkpoint", "id", wal_id + b" %08x\n" % crc32c(wal_id))

    def tombstone(kind, installation):
        head, tail = bytes([kind, 0, 0, 0]), struct.pack("<q", 1_760_000_000_000) + bytes([installation] * 16)
        return head + struct.pack("<I", crc32c(head + tail)) + tail

    seed("deletions", "promised", tombstone(1, 5) * 2 + tombstone(1, 6) * 2)
    seed("deletions", "hidden", tombstone(1, 5) * 2 + tombstone(2, 5) + tombstone(1, 6)[:20])

    def name(line):
        text = json.dumps(line, separators=(",", ":")).encode()
        return b"%08x " % crc32c(text) + text + b"\n"

    seed("names", "two", name([20_000, "app", "production", 1, "m\n2", 7, 0]) + b"\n" + name([20_001, "app", "x", 3, "1x3", 0, 640]))
    seed("names", "torn", name([20_000, "app", "production", 0, "m", 0, 0]) + b"0badc0de [20000")

    backup = {"format": 1, "epwatch": "0.1.0", "database": "epwatch", "schema_series": "epwatch-1", "schema_version": 8,
              "taken_at_ms": 1_760_000_000_000, "functions": [], "tables": [],
              "wal": {"collector_id": "7", "checkpoint": 640},
              "files": [{"path": "store.tar.zst", "bytes": 4, "sha256": "00" * 32}]}
    text = json.dumps(backup, separators=(",", ":"))
    backup["sha256"] = hashlib.sha256(text[:-1].encode()).hexdigest()
    seed("backup_manifest", "whole", json.dumps(backup, indent=2).encode())
    seed("backup_manifest", "edited", json.dumps({**backup, "taken_at_ms": 1}).encode())

    report = wire("report_minimal")
    record = struct.pack("<II", len(report), crc32c(report)) + report
    seed("spool_segment", "two", b"EPWSPL1\n" + record * 2)
    seed("spool_segment", "torn", b"EPWSPL1\n" + record + record[:30])

    fixtures = os.path.join(HERE, "..", "fixtures")

    def copy(target, name, *path):
        with open(os.path.join(fixtures, *path), "rb") as file:
            seed(target, name, file.read()[:60_000])

    copy("golden_input", "image", "self_test", "image-1", "input_0.pb")
    copy("golden_input", "packed", "self_test", "every_type_packed", "input_0.pb")
    for name in ["built_in_1_17.txt", "built_in_1_20.logcat.txt", "built_in_errors.txt", "e_topk.qu8.68.verbose.txt"]:
        copy("ort_log", name.removesuffix(".txt"), "logs", name)
    for name in ["npu_off", "revoke"]:
        # A signed directive begins with its directive.
        signed = wire("directive_" + name)
        seed("directive", name, signed[2:2 + signed[1]])
        # Field 6 of the answer, longer than 127 bytes.
        seed("directive", "answer_" + name, bytes([0x32, len(signed) & 0x7F | 0x80, len(signed) >> 7]) + signed)


def gate():
    root = os.path.join(HERE, "..", "..")
    fixtures = os.path.join(root, "detector", "gate", "tests", "fixtures")

    def copy(target, name, *path):
        with open(os.path.join(*path), "rb") as file:
            seed(target, name, file.read())

    read = lambda name, text: seed("gate_read", name, text.encode())
    copy("gate_read", "ort_profile", fixtures, "profiles", "d_mlp.fp32.SM8650.json")
    copy("gate_read", "qnn_csv", fixtures, "profiles", "e_mixed.q8head32.SM8635.csv")
    copy("gate_read", "aihub_result", fixtures, "aihub", "result.pb")
    copy("gate_read", "aihub_profile", fixtures, "aihub", "profile.json")
    copy("gate_read", "recorded_reports", root, "tests", "fixtures", "wire", "recorded_reports.bin")
    read("latencies", str([8_210 + at for at in range(30)]))
    read("latencies_csv", "run,latency_ms\n" + "".join(f"{at},8.21\n" for at in range(30)))
    read("perf_yaml", "precisions:\n  float:\n    components:\n      M:\n        performance_metrics:\n          QCS8550 (Proxy):\n"
         "            onnx:\n              inference_time_milliseconds: 0.8\n              layer_counts:\n                npu: 9\n")
    read("litert", "STARTING!\nGraph: [/m.tflite]\nReplacing 69 out of 71 node(s) with delegate (TfLiteQnnDelegate) node, "
         "yielding 2 partitions\ncount=50 avg=2.95034e+06 std=1 p5=1 median=2 p95=3\n")
    read("coreml", "\n=== m.mlpackage ===\n  ANE:   118 /   130 ( 90.8%)\n  CPU:    12 /   130 (  9.2%)\n")
    read("trtexec", '[ { "count" : 30 }, { "name" : "a", "timeMs" : 3.0, "averageMs" : 1.0 } ]')
    read("winml", '{"benchmark_info": {"device": "npu", "ep": "QNNExecutionProvider"}, "latency_ms": {}, "raw_samples_ms": [5.1, 5.4]}')
    read("run", '{"schema": "epwatch.run/1", "runs_us": ' + str([8_210] * 30) + ', "warmup": 1, "target": {"device": "a"}, "load_us": 9, '
         '"thermal_after": 1, "probe_us": 100, "per_op": [{"name": "a", "op_type": "Gemm", "ep": "CPUExecutionProvider", "macs": 10}, '
         '{"name": "b", "ep": "QNNExecutionProvider", "macs": 90}], "outputs": {"hash": "a", "cosine": 0.99}}')
    read("inspect", '{"macs_error": null, "chipsets": [{"chipset": "SM8635", "soc_model": "68", "session": "ok", "error": null, "eps": '
         '{"QNNExecutionProvider": {"nodes": 3, "partitions": 1, "macs_share": 0.7}}, "cpu_nodes": [{"name": "a", "op_type": "Gemm", '
         '"reason": "unknown", "reason_text": null, "macs_share": 0.3, "benign": false}], "fingerprint_normalised": null, "reasons": []}]}')
    # A V2 histogram of 3 digits: a thousand zeros, then one value of 1,000.
    counts = bytes([0xCF, 0x0F, 2])
    histogram = struct.pack(">IIIIQQd", 0x1C849313, len(counts), 0, 3, 1, 60_000_000, 1.0) + counts
    encoded = base64.b64encode(histogram).decode()
    read("hdr_log", f'#[Histogram log format version 1.3]\n"StartTimestamp","Interval_Length"\n0.0,1.0,8.2,{encoded}\n')
    # The statement is not signed, because the fuzz target accepts every signature.
    statement = {"_type": "https://in-toto.io/Statement/v1", "subject": [{"name": "m.onnx", "digest": {"sha256": "ab" * 32}}]}
    for name, kind, predicate in [
        ("gate", "https://epwatch.dev/attestation/gate/v1",
         {"made_at": "2026-01-01T00:00:00Z", "gate": {"result": "pass", "policy": {"path": "gate.toml", "sha256": "cd" * 32}}}),
        ("test_result", "https://in-toto.io/attestation/test-result/v0.1", {"result": "PASSED", "configuration": []}),
    ]:
        payload = base64.b64encode(json.dumps(statement | {"predicateType": kind, "predicate": predicate}).encode()).decode()
        envelope = {"payload": payload, "payloadType": "application/vnd.in-toto+json", "signatures": [{"keyid": "", "sig": "AA=="}]}
        seed("gate_evidence", name, json.dumps(envelope).encode())
    seed("gate_policy", "whole", b"[placement]\nmin_npu_macs = 0.98\nmax_partitions = 1\nallowed_cpu_ops = ['TopK']\n"
         b"[chipset.SM8635.placement]\nmin_npu_macs = 0.7\n[latency]\nmedian_ms = 10.0\n[load]\ncold_ms = 9\n[outputs]\nmin_cosine = 0.99\n[variants]\ndefault = 'a.onnx'\n")
    for model in ("rnn", "unet"):
        copy("onnx_model", model, root, "detector", "manifest", "tests", "fixtures", f"{model}.onnx")
    for model in ("forms.qu8", "forms_channels.qs8", "image_norm.fp32"):
        copy("onnx_rewrite", model, root, "tests", "fixtures", "models", f"{model}.onnx")


if __name__ == "__main__":
    main()
