"""Children of every kind, each with runs of its own. Arguments: a model, `fork`, `spawn` or `forkserver`, or `os.fork`.

The parent makes 10 runs before and 5 after; each of three children makes 20 with a session of its own, and 7 with the
parent's. ONNX Runtime's threads do not survive a fork, so that session has none.
"""

import multiprocessing
import os
import sys

import numpy
import onnxruntime

import epwatch

MODEL, HOW = sys.argv[1:]
IMAGE = numpy.zeros((1, 64), numpy.float32)


def made():
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return epwatch.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"], model="mlp", version="7")


def run(session, times):
    for _ in range(times):
        session.run(None, {"x": IMAGE})


def child(inherited):
    if HOW in ("spawn", "forkserver"):
        epwatch.start(exit_seconds=300)
    run(made(), 20)
    if inherited is not None:
        run(inherited, 7)
    assert epwatch.explain()["last_problem"] is None, epwatch.explain()


def forked(session):
    pid = os.fork()
    if pid == 0:
        # After an exception the child must not continue with the parent's code.
        try:
            child(session)
            epwatch.flush(300)
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return pid


if __name__ == "__main__":
    epwatch.start(exit_seconds=300)
    session = made()
    run(session, 10)
    if HOW == "os.fork":
        for pid in [forked(session) for _ in range(3)]:
            assert os.waitpid(pid, 0)[1] == 0
    else:
        context = multiprocessing.get_context(HOW)
        inherited = session if HOW == "fork" else None
        children = [context.Process(target=child, args=(inherited,)) for _ in range(3)]
        for process in children:
            process.start()
        for process in children:
            process.join()
            assert process.exitcode == 0
    run(session, 5)
    print("as expected")
