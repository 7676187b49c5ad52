"""The loop of a peer that is a process: a line in, a line out (bench/child.h).

    lines.serve(lambda words: a function that makes one call)

    case dot f32 M N K FOLDER                         a product; operands are FOLDER/0 and FOLDER/1, the result is written to FOLDER/out
    case conv DIRECTION N SIZE CI KERNEL CO STRIDE LOW HIGH FOLDER      NHWC and HWIO in the files
    case step MODEL BATCH f32|bf16                    a training step
    run N                                             N calls; the answer is their seconds
    memory                                            the largest resident size so far, in KiB
"""
import sys
import time


def peak_kib():
    with open("/proc/self/status", encoding="ascii") as status:
        return next(line.split()[1] for line in status if line.startswith("VmHWM"))


def answer(line, state, prepare):
    words = line.split()
    if words[0] == "memory":
        return peak_kib()
    if words[0] == "case":
        state.pop("call", None)    # before the next one takes memory
        state["call"] = prepare(words[1:])
        return "ready"
    times, call = int(words[1]), state["call"]
    started = time.perf_counter()
    for _ in range(times):
        call()
    return f"{time.perf_counter() - started:.9f}"


def serve(prepare):
    state = {}
    for line in sys.stdin:
        try:
            said = answer(line, state, prepare)
        except Exception as e:    # whatever a framework cannot do is the reason of a missing figure
            said = "failed " + " ".join(f"{type(e).__name__}: {e}".split())[:500]
        print(said, flush=True)
