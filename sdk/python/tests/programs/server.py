"""An app for gunicorn, loaded before its workers are forked: each answers with its process, and has one run an answer.

The workers import onnxruntime themselves: 1.31.1 hangs at the end of a process that was forked after its import, with or
without epwatch.
"""

import functools
import os

import epwatch

epwatch.start(exit_seconds=300)


@functools.lru_cache(maxsize=None)
def session():
    return epwatch.InferenceSession(
        os.environ["MODEL"], providers=["CPUExecutionProvider"], model="mlp", version="7"
    )


def app(environ, start_response):
    import numpy

    session().run(None, {"x": numpy.zeros((1, 64), numpy.float32)})
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
