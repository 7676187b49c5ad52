"""Environments of released versions, against a package index in this process: nothing outside of
this machine is asked."""

import ctypes
import hashlib
import http.server
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import tomllib
import unittest
import zipfile

ADAPTERS = pathlib.Path(__file__).resolve().parents[2] / "adapters"
CASES = ADAPTERS.parent / "cases"
sys.path.insert(0, str(ADAPTERS))
from twinrun import cuda_stubs, environments, index, pythons  # noqa: E402

CLOSED = "http://127.0.0.1:9/simple"  # the port of `discard`, which no machine listens on


def wheel(name, version, requires=(), python=None):
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + "".join(
        f"Requires-Dist: {r}\n" for r in requires
    )
    text += f"Requires-Python: {python}\n" if python else ""
    folder, kept = f"{name}-{version}.dist-info", io.BytesIO()
    with zipfile.ZipFile(kept, "w") as archive:
        archive.writestr(f"{name}/__init__.py", f"version = '{version}'\n")
        archive.writestr(f"{folder}/METADATA", text)
        archive.writestr(
            f"{folder}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{folder}/RECORD", "")
    return kept.getvalue()


class Packages:
    """A package index: add() files, and ask at `address`. `html`: it speaks HTML only."""

    def __init__(self, html=False):
        self.files, self.html = {}, html
        packages = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                kind, _, name = self.path.strip("/").partition("/")
                body, said = None, "application/octet-stream"
                if kind == "simple":
                    listed = [f for f in packages.files.values() if f["name"] == name.strip("/")]
                    if listed and packages.html:
                        body, said = packages.page(listed).encode(), "text/html"
                    elif listed:
                        files = [{k: v for k, v in f.items() if k not in ("body", "name")} for f in listed]
                        body, said = json.dumps({"files": files}).encode(), "application/vnd.pypi.simple.v1+json"
                elif name in packages.files:
                    body = packages.files[name]["body"]
                self.send_response(200 if body is not None else 404)
                self.send_header("Content-Type", said)
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, *words):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}/simple"

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    @staticmethod
    def page(listed):
        return "".join(
            f'<a href="{f["url"]}"' + (' data-yanked="bad"' if f["yanked"] else "") + f">{f['filename']}</a>"
            for f in listed
        )

    def add(self, name, version, day="2024-01-01", requires=(), tags="py3-none-any", yanked=False, python=None):
        filename, body = f"{name}-{version}-{tags}.whl", wheel(name, version, requires, python)
        self.files[filename] = {
            "name": name,
            "filename": filename,
            "url": f"../../files/{filename}",
            "body": body,
            "yanked": yanked,
            "requires-python": python,
            "hashes": {"sha256": hashlib.sha256(body).hexdigest()},
            "size": len(body),
            "upload-time": f"{day}T12:00:00.000000Z",
        }


class WithIndex(unittest.TestCase):
    html = False

    def setUp(self):
        self.packages = Packages(self.html)
        self.cache = tempfile.TemporaryDirectory(prefix="twinrun_environments_")
        self.addCleanup(self.cache.cleanup)
        self.addCleanup(self.packages.close)
        self.variables = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
        self.variables.update(
            PIP_CONFIG_FILE=os.devnull,
            PIP_INDEX_URL=self.packages.address,
            XDG_CACHE_HOME=self.cache.name,
            PYTHONPATH=str(ADAPTERS),
            PIP_NO_CACHE_DIR="1",
            no_proxy="127.0.0.1",
            PIP_RETRIES="0",
            PYENV_ROOT=self.cache.name,
        )
        folder = os.path.join(self.cache.name, "bin")  # this Python alone, so that no other is asked
        os.makedirs(folder)
        os.symlink(sys.executable, os.path.join(folder, "python3"))
        self.variables["PATH"] = os.pathsep.join([folder, "/usr/sbin"])

    def start(self, *words, **changed):
        return subprocess.Popen(
            [sys.executable, "-m", "twinrun", "environment", *words],
            env={**self.variables, **changed},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
        )

    def ask(self, *words, status=0, **changed):
        process = self.start(*words, **changed)
        said, complained = process.communicate()
        self.assertEqual(process.returncode, status, said + complained)
        return json.loads(said.splitlines()[-1]) if said else complained

    def folders(self):
        root = os.path.join(self.cache.name, "twinrun", "environments")
        return [f for f in os.listdir(root) if os.path.isdir(os.path.join(root, f))] if os.path.isdir(root) else []


class Made(WithIndex):
    def test_once_and_as_on_the_day_of_the_release(self):
        self.packages.add("tool", "1.0", "2024-01-01", requires=["helper"])
        self.packages.add("helper", "1.0", "2023-06-01")
        self.packages.add("helper", "2.0", "2024-06-01")  # came later
        first = self.ask("tool==1.0")
        self.assertTrue(first["made"])
        self.assertEqual({n: first["installed"][n] for n in ("tool", "helper")}, {"tool": "1.0", "helper": "1.0"})
        self.assertGreater(first["bytes"], 0)
        said = subprocess.run(
            [first["python"], "-c", "import tool, helper; print(tool.version, helper.version)"],
            check=True,
            stdout=subprocess.PIPE,
            universal_newlines=True,
        ).stdout
        self.assertEqual(said, "1.0 1.0\n")
        again = self.ask("tool==1.0", PIP_INDEX_URL=CLOSED)  # needs no index
        self.assertEqual(again, dict(first, made=False))
        gone = self.ask("--remove", "tool==1.0")
        self.assertEqual(len(gone["removed"]), 1)
        self.assertEqual(self.folders(), [])

    def test_further_indexes_are_of_that_day_too(self):
        other = Packages()
        self.addCleanup(other.close)
        self.packages.add("tool", "1.0", "2024-01-01", requires=["helper"])
        other.add("helper", "1.0", "2023-06-01")
        other.add("helper", "2.0", "2024-06-01")
        self.assertEqual(self.ask("tool==1.0", PIP_EXTRA_INDEX_URL=other.address)["installed"]["helper"], "1.0")

    def test_what_is_pinned_is_not_hidden(self):
        self.packages.add("tool", "1.0", "2024-01-01")
        self.packages.add("helper", "1.0", "2023-06-01")
        self.packages.add("helper", "2.0", "2024-06-01")
        self.assertEqual(self.ask("tool==1.0", "helper==2.0")["installed"]["helper"], "2.0")

    def test_jaxlib_brings_its_jax(self):
        for version in ("0.4.30", "0.4.31", "0.4.33", "0.5.0rc1", "0.5.0"):
            self.packages.add("jax", version)
        self.packages.add("jaxlib", "0.4.32")
        self.assertEqual(self.ask("jaxlib==0.4.32")["installed"]["jax"], "0.4.31")

    def test_a_half_made_one_is_made_again(self):
        self.packages.add("tool", "1.0")
        made = self.ask("tool==1.0")
        os.remove(os.path.join(os.path.dirname(os.path.dirname(made["python"])), "environment.json"))
        self.assertTrue(self.ask("tool==1.0")["made"])

    def test_two_processes_make_it_once(self):
        self.packages.add("tool", "1.0")
        both = [self.start("tool==1.0") for _ in range(2)]
        said = [json.loads(p.communicate()[0].splitlines()[-1]) for p in both]
        self.assertEqual(sorted(s["made"] for s in said), [False, True])


class Refused(WithIndex):
    def why(self, *words, **changed):
        answer = self.ask(*words, status=environments.UNAVAILABLE, **changed)
        self.assertEqual(self.folders(), [])
        return answer["unavailable"]

    def test_says_what_was_tried(self):
        self.packages.add("tool", "1.0", yanked="it computes nonsense")
        self.packages.add("tool", "2.0", tags="cp27-none-any")
        self.packages.add("tool", "3.0", python=">=3.99")
        self.packages.add("tool", "4.0", requires=["nowhere"])
        self.assertRegex(self.why("tool==1.0"), "tool 1.0 was yanked: it computes nonsense")
        self.assertRegex(self.why("tool==2.0"), r"has no wheel for a Python of this machine \(found here: 3\.")
        self.assertRegex(self.why("tool==3.0"), "has no wheel")
        self.assertRegex(self.why("tool==4.0"), "tool==4.0 could not be installed.*nowhere")
        self.assertRegex(self.why("tool==5.0"), "has no tool 5.0; its newest releases are 1.0, 2.0, 3.0, 4.0")
        self.packages.add("right", "1.0")
        self.assertRegex(
            self.why("right==1.0", "tool==2.0"), "no Python of this machine has wheels of all of right==1.0, tool==2.0"
        )
        self.assertRegex(self.why("right==1.0", "tool==99"), "has no tool 99; its newest releases are")
        self.assertRegex(self.why("other==1.0"), "has no other 1.0$")
        self.assertRegex(self.why("tool==1.0", PIP_INDEX_URL=CLOSED), "index could not be reached.*127.0.0.1:9")
        self.assertIn("names no version", self.ask("tool", status=2))
        self.assertIn("names no version", self.ask("tool==../../x", status=2))    # it would be a folder outside of the cache

    def test_an_index_that_fails_meanwhile_is_no_missing_version(self):
        self.packages.add("tool", "4.0", requires=["nowhere"])
        found = index.Index({"index": self.packages.address, "more": [], "cert": None, "certifi": None, "proxy": None})
        found.releases("tool")
        found.addresses = [CLOSED]
        with self.assertRaises(index.Unreachable):
            found.releases("nowhere")


class Releases(WithIndex):
    date = "2024-01-01"

    def test_are_listed_with_their_pythons(self):
        here = "{}.{}".format(*sys.version_info)
        self.packages.add("tool", "1.10")
        self.packages.add("tool", "1.9", yanked=True)
        self.packages.add("tool", "1.11rc1")
        self.packages.add("tool", "2.0", tags="cp27-none-any")
        self.assertEqual(
            self.ask("--releases", "Tool"),
            {
                "package": "tool",
                "releases": [
                    {"version": "1.9", "yanked": True, "pythons": [here], "date": self.date},
                    {"version": "1.10", "yanked": False, "pythons": [here], "date": self.date},
                    {"version": "1.11rc1", "yanked": False, "pythons": [here], "date": self.date},
                    {"version": "2.0", "yanked": False, "pythons": [], "date": self.date},
                ],
            },
        )


class ReleasesInHtml(Releases):
    html = True
    date = None  # which an index in HTML does not tell


class Cases(unittest.TestCase):
    """cases/: what can be said of them without a network."""

    def test_are_whole(self):
        folders = sorted(p.parent for p in CASES.glob("*/case.toml"))
        self.assertEqual(folders, sorted(p.parent for p in CASES.glob("*/script.py")))
        self.assertGreater(len(folders), 5)
        for folder in folders:
            with self.subTest(folder.name):
                with open(folder / "case.toml", "rb") as file:
                    case = tomllib.load(file)
                self.assertLessEqual(len((folder / "script.py").read_text().splitlines()), 60)
                self.assertTrue(case["title"] and case["wrong"] and case["bad"])
                if case["thread"].startswith("none yet: "):
                    self.assertTrue((CASES.parent / case["thread"].split(": ")[1]).exists())
                else:
                    self.assertRegex(case["thread"], r"^[\w.-]+/[\w.-]+#\d+$")
                self.assertIn(case["way"], ("diagnose", "watch"))
                self.assertIn(case["due"]["verdict"], ("ENGINE_BUG", "SHARDING", "PROGRAM", "NOISE", "INCONCLUSIVE"))
                self.assertIsNone(re.compile(case["due"]["names"]).match(""), "it must not match everything")
                self.assertFalse(set(case["bad"]) & set(case.get("good", [])))

    def test_are_skipped_with_a_word_without_a_network(self):
        with tempfile.TemporaryDirectory() as empty:
            variables = dict(os.environ, PIP_CONFIG_FILE=os.devnull, PIP_INDEX_URL=CLOSED, XDG_CACHE_HOME=empty)
            done = subprocess.run(
                [sys.executable, str(CASES / "run.py"), "token_shift", "--program", sys.executable],
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                universal_newlines=True,
            )
        self.assertEqual(done.returncode, 77, done.stdout)
        self.assertRegex(
            done.stdout, "(?m)^skipped token_shift 0.4.35: the package index could not be reached .*127.0.0.1:9"
        )
        self.assertIn("SKIPPED: no case could be run", done.stdout)


class Rules(unittest.TestCase):
    def test_versions_are_ordered(self):
        ordered = [
            "1.0.dev1",
            "1.0a1",
            "1.0b2",
            "1.0rc1",
            "1.0",
            "1.0.post1",
            "1.0.1",
            "1.2",
            "1.10",
            "1.10.0.1",
            "2.0",
            "1!0.1",
        ]
        self.assertEqual(sorted(reversed(ordered), key=pythons.version_key), ordered)
        self.assertEqual(pythons.version_key("2.0"), pythons.version_key("2.0.0"))

    def test_pythons_are_allowed(self):
        for told, version, due in (
            (">=3.9", "3.8.18", False),
            (">=3.9,<3.12", "3.11.7", True),
            ("!=3.10.*", "3.10.1", False),
            ("~=3.8", "3.13.0", True),
            ("~=3.8.1", "3.9.0", False),
            (">=2.7, !=3.0.*", "3.11.7", True),
            ("==3.11.*", "3.11.7", True),
            (None, "3.8.0", True),
            (">=3.6.*", "3.8.0", True),
        ):
            with self.subTest(told=told, version=version):
                self.assertIs(pythons.allows(told, version), due)

    def test_stand_ins_are_for_cuda_alone(self):
        for name, due in (
            ("nvidia-cublas-cu12", True),
            ("nvidia-cuda-nvrtc-cu12", True),
            ("nvidia-cuda-runtime-cu12", False),
            ("nvidia-cuda-cupti", False),
            ("triton", True),
            ("tritonclient", False),
            ("numpy", False),
            ("torch", False),
        ):
            self.assertIs(bool(index.STAND_INS.match(name)), due, name)


@unittest.skipUnless(sys.platform == "linux" and os.uname().machine == "x86_64", "the stubs are for Linux on x86-64")
class Stubs(unittest.TestCase):
    def test_are_loaded_and_define_their_symbols(self):
        names = {(f"cudnnThing{i}", None) for i in range(300)} | {("cublasOld", "lib.so.1"), ("cublasNew", "lib.so.2")}
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "libstub.so.7")
            with open(path, "wb") as file:
                file.write(cuda_stubs.shared_library("libstub.so.7", names))
            loaded = ctypes.CDLL(path, mode=os.RTLD_NOW)
            for name, _ in names:
                self.assertEqual(getattr(loaded, name)(), 1)
            self.assertRaises(AttributeError, lambda: loaded.cudnnThing300)
            libc = ctypes.CDLL(None)
            libc.dlvsym.restype = ctypes.c_void_p
            for version, there in ((b"lib.so.2", True), (b"lib.so.1", False)):
                found = libc.dlvsym(ctypes.c_void_p(loaded._handle), b"cublasNew", version)
                self.assertIs(bool(found), there)
            self.assertEqual(index_of(path), "libstub.so.7")

    def test_libraries_are_read(self):
        path = sys.modules["_ctypes"].__file__
        read = cuda_stubs.Library(path)
        self.assertIn("PyInit__ctypes", read.defined)
        self.assertTrue({"PyErr_SetString", "dlopen"} & {name for name, _, _ in read.wanted})
        self.assertTrue(any(name.startswith("libc.") for name in read.needed), read.needed)


def index_of(path):
    """Returns the name under which the loader knows a library: the name of its base version."""
    with open(path, "rb") as file:
        return next((n for n in file.read().decode("latin-1").split("\0") if n.startswith("libstub")), None)


if __name__ == "__main__":
    unittest.main()
