"""Surroundings in which a run cannot end well, or has to: limits, disks, streams, clocks, and ten at once.

Each function runs the scene's command there and returns a list of (what was tried, what is wrong or None).
"""

import os
import resource
import shutil
import subprocess

from scenes import Ran

NOBODY = 65534


def limited(what, soft, user=None):
    def prepare():
        if user is not None:
            os.setgid(user)
            os.setuid(user)
        resource.setrlimit(what, (soft, soft))
    return prepare


def tried(scene, what, ran):
    return what, scene.judge(ran)


def given_again(scene, row):
    what, wrong = row
    return what, wrong or scene.judge_again()


def limits(scene):
    """ulimit of every kind, from hopeless to almost enough."""
    rows = []
    kinds = [("open files", resource.RLIMIT_NOFILE, [4, 5, 6, 8, 12]),
             ("file size", resource.RLIMIT_FSIZE, [0, 1, 4096, 16384, 65536]),
             ("memory", resource.RLIMIT_AS, [n << 20 for n in range(*room(scene))]),
             ("stack", resource.RLIMIT_STACK, [n << 10 for n in (64, 128, 256, 1024)]),
             ("core", resource.RLIMIT_CORE, [0])]
    for name, what, values in kinds:
        for value in values:
            scene.fresh()
            ran = scene.run(scene.verb.words, prepare=limited(what, value))
            if ran.code in (127, -11, -9) and not ran.out and "twinrun" not in ran.err and started_not(scene, what, value):
                rows.append((f"{name} {value}: the loader ends it", None))
                continue
            rows.append(given_again(scene, tried(scene, f"{name} {value}", ran)))
    return rows


def started_not(scene, what, value):
    """Whether even --version does not start under this limit: nothing of ours can say so."""
    return scene.run(["--version"], prepare=limited(what, value)).code not in (0, 128)


def room(scene):
    """(first, end, step) in MiB: from where the program starts to where the run needs no more."""
    def runs(words, megabytes):
        return scene.run(words, prepare=limited(resource.RLIMIT_AS, megabytes << 20)).code
    def least(good, low, high):
        while high - low > 2:
            middle = (low + high) // 2
            low, high = (low, middle) if good(middle) else (middle, high)
        return high
    starts = least(lambda n: runs(["--version"], n) == 0, 16, 2048)
    scene.fresh()
    enough = least(lambda n: runs(scene.verb.words, n) == scene.code, starts, 8192)
    return starts, enough + 8, max(1, (enough + 8 - starts) // 24)


def processes(scene):
    """No more threads or processes, as a user who is not root, with the threads that the machine has."""
    user = NOBODY if os.geteuid() == 0 else None
    rows, words = [], list(scene.verb.words)
    words[words.index("--threads") + 1] = "8"
    for value in (0, 1, 2, 4):
        scene.fresh()
        if user is not None:
            subprocess.run(["chown", "-R", str(user), scene.work], check=True)
            os.chmod(scene.root, 0o755)
        ran = scene.run(words, prepare=limited(resource.RLIMIT_NPROC, value, user))
        rows.append(given_again(scene, tried(scene, f"processes {value}", ran)))
    return rows


def disks(scene):
    """A small disk that is full, from its first to its last block; needs root and a mount namespace."""
    rows = []
    for kilobytes in (16, 32, 64, 128, 256, 512, 1024, 2048):
        scene.fresh()
        size = kilobytes + int(subprocess.run(["du", "-sk", scene.work], capture_output=True, text=True).stdout.split()[0])
        script = ('mount -t tmpfs -o size="$1"k none "$2/disk" && cp -a "$2/work/." "$2/disk/" 2>/dev/null; cd "$2/disk" && '
                  'mkdir -p tmp cache && export TMPDIR="$2/disk/tmp" TWINRUN_CACHE="$2/disk/cache"; shift 2; "$@"; code=$?; '
                  'cd ..; cp -a disk/. work/; exit $code')
        (scene.root / "disk").mkdir(exist_ok=True)
        command = ["unshare", "-m", "bash", "-c", script, "disk", str(size), str(scene.root), scene.program,
                   *scene.verb.words]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if "mount:" in done.stderr or "unshare:" in done.stderr:
            return [("a full disk: no root, not tried", None)]
        rows.append(given_again(scene, tried(scene, f"{kilobytes} KiB free", Ran(done.returncode, done.stdout, done.stderr))))
    return rows


def read_only(scene):
    """A folder that cannot be written to, as a user who is not root."""
    scene.fresh()
    user = NOBODY if os.geteuid() == 0 else None
    subprocess.run(["chmod", "-R", "a-w", scene.work], check=True)
    subprocess.run(["chmod", "a+rwx", scene.work / "tmp"], check=True)
    os.chmod(scene.root, 0o755)
    def prepare():
        if user is not None:
            os.setgid(user)
            os.setuid(user)
    row = tried(scene, "read-only folder", scene.run(scene.verb.words, prepare=prepare))
    subprocess.run(["chmod", "-R", "u+w", scene.work], check=True)
    return [given_again(scene, row)]


def streams(scene):
    """Closed standard streams, a full standard output, a pipe that nobody reads."""
    rows = []
    for closed in ([0], [1], [2], [0, 1, 2]):
        scene.fresh()
        ran = scene.run(scene.verb.words, prepare=lambda: [os.close(fd) for fd in closed])
        # Without a standard output the result cannot be printed, which is an error; without a standard error it is silent.
        good = ran.code in (scene.code, 128) and not scene.torn() and not scene.leftovers()
        rows.append(given_again(scene, (f"closed {closed}", None if good else ran.words())))
    scene.fresh()
    with open("/dev/full", "w") as full:
        ran = scene.run(scene.verb.words, stdout=full)
    good = ran.code == 128 and "standard output" in ran.err and not scene.torn() and not scene.leftovers()
    rows.append(given_again(scene, ("stdout to /dev/full", None if good else ran.words())))
    return rows


def clock(scene):
    """A clock that jumps by days, forwards and backwards, between any two looks at it."""
    scene.fresh()
    return [given_again(scene, tried(scene, "clock that jumps", scene.disturbed(FAILING_CALLS_CLOCK=1)))]


def ten_at_once(scene):
    """Ten processes with the same command in one folder, then in ten folders with one cache."""
    scene.fresh()
    wrong = []
    every = [scene.start(scene.verb.words) for _ in range(10)]
    ended = [(p.communicate(timeout=300), p.returncode) for p in every]
    codes = [code for _, code in ended]
    busy = all("another twinrun" in err for (_, err), code in ended if code != scene.code)
    if scene.code not in codes or any(c not in (scene.code, 128) for c in codes) or not busy:
        wrong.append(f"codes {codes}: {[err[-200:] for (_, err), code in ended if code != scene.code][:1]}")
    if scene.torn() or scene.leftovers():
        wrong.append(f"torn {scene.torn()}, leftovers {scene.leftovers()}")
    rows = [given_again(scene, ("ten in one folder", "; ".join(wrong) or None))]

    scene.fresh()
    folders = [scene.root / f"at-once-{i}" for i in range(10)]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(scene.template, folder)
    environment = scene.environment()  # one cache, one TMPDIR
    every = [scene.start(scene.verb.words, environment, work=folder) for folder in folders]
    ended = [(p.communicate(timeout=300), p.returncode) for p in every]
    wrong = [err[-200:] for (_, err), code in ended if code != scene.code][:1]
    work = scene.work
    for folder, ((out, err), code) in zip(folders, ended):
        scene.work = folder
        if scene.result_of(Ran(code, out, err)) != scene.result:
            wrong.append("another result")
        scene.work = work
        shutil.rmtree(folder)
    if scene.leftovers():
        wrong.append(f"leftovers {scene.leftovers()}")
    rows.append(given_again(scene, ("ten on one cache", "; ".join(wrong) or None)))
    return rows


ALL = {"a limit (`ulimit`) of files, memory, stack": limits, "no more threads or processes": processes,
       "a small disk that fills up": disks, "a folder that is read-only": read_only, "streams closed or full": streams,
       "a clock that jumps": clock, "ten processes at once": ten_at_once}
