"""The package index that pip is configured for, as it was on a day: what pip is to resolve is asked
of a server in this process, which leaves out what was uploaded later, and gives empty stand-ins for
the CUDA packages that a CPU does not need."""

import base64
import contextlib
import datetime
import hashlib
import html
import html.parser
import http.server
import io
import json
import os
import re
import ssl
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
import zipfile

from .pythons import allows, fits, version_key

# PyTorch's wheels require these. Of CUDA, its runtime and its profiling interface are called when
# PyTorch is imported.
STAND_INS = re.compile(r"(nvidia-(?!cuda-(runtime|cupti|cccl)\b)|cuda-bindings$|cuda-pathfinder$|triton$)")
ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.5, text/html;q=0.1"


class Unreachable(Exception):
    """The package index did not answer."""


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def version_of(filename):
    """Returns the version that the name of a wheel or of a source archive tells, or None."""
    if filename.endswith(".whl"):
        parts = filename.split("-")
        return parts[1] if len(parts) in (5, 6) else None
    found = re.match(r".+-([^-]+)\.(tar\.gz|tar\.bz2|zip)$", filename)
    return found[1] if found else None


class _Links(html.parser.HTMLParser):
    """The files of an index's page in HTML."""

    def __init__(self):
        super().__init__()
        self.files = []

    def handle_starttag(self, tag, attributes):
        said = dict(attributes)
        if tag == "a" and said.get("href"):
            url = said["href"]
            name = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rsplit("/", 1)[-1])
            self.files.append(
                {
                    "filename": name,
                    "url": url,
                    "requires-python": said.get("data-requires-python"),
                    "yanked": (said["data-yanked"] or True) if "data-yanked" in said else False,
                }
            )


class Index:
    """The index that `python`, one of find_pythons(), is configured for."""

    def __init__(self, python):
        self.addresses = [python["index"], *python["more"]]
        self.pages, self.unreachable, self.stood_in = {}, None, []
        context = ssl.create_default_context()
        for file in (python["cert"], python["certifi"]):
            if file and os.path.exists(file):
                context.load_verify_locations(file)
        handlers = [urllib.request.HTTPSHandler(context=context)]
        if python["proxy"]:
            handlers.append(urllib.request.ProxyHandler({"http": python["proxy"], "https": python["proxy"]}))
        self.opener = urllib.request.build_opener(*handlers)

    def files(self, name):
        """Returns what the index has of a package: [{filename, url, requires-python, yanked, upload-time, ..}]."""
        name = normal(name)
        if name not in self.pages:
            found = []
            for address in self.addresses:
                found += self._page(address.rstrip("/") + f"/{name}/")
            self.pages[name] = found
        return self.pages[name]

    def _page(self, url):
        parts = urllib.parse.urlsplit(url)
        login, _, host = parts.netloc.rpartition("@")
        asked = urllib.request.Request(urllib.parse.urlunsplit(parts._replace(netloc=host)), headers={"Accept": ACCEPT})
        if login:
            asked.add_header(
                "Authorization", "Basic " + base64.b64encode(urllib.parse.unquote(login).encode()).decode()
            )
        try:
            with self.opener.open(asked, timeout=60) as answer:
                kind, text, where = answer.headers.get("Content-Type", ""), answer.read().decode(), answer.geturl()
        except urllib.error.HTTPError as e:
            if e.code in (403, 404, 410):
                return []
            self.unreachable = f"{host}: {e}"
        except (OSError, ValueError) as e:
            self.unreachable = f"{host}: {getattr(e, 'reason', e)}"
        if self.unreachable:
            raise Unreachable(self.unreachable)
        if "json" in kind:
            files = json.loads(text)["files"]
        else:
            links = _Links()
            links.feed(text)
            files = links.files
        for file in files:
            there = urllib.parse.urlsplit(urllib.parse.urljoin(where, file["url"]))
            if login and there.netloc == host:  # files of the same host take the same login
                there = there._replace(netloc=f"{login}@{host}")
            file["url"] = urllib.parse.urlunsplit(there)
        return files

    def releases(self, name):
        """Returns {version: {version, files, yanked}}, the oldest first. A release is yanked if all
        of its files are."""
        found = {}
        for file in self.files(name):
            version = version_of(file["filename"])
            if version:
                found.setdefault(version, []).append(file)
        return {
            v: {
                "version": v,
                "files": found[v],
                "yanked": all(f.get("yanked") for f in found[v]) and found[v][0]["yanked"],
            }
            for v in sorted(found, key=version_key)
        }

    def wheels(self, release, python):
        """Returns the files of a release that one of find_pythons() can install without building."""
        return [
            f
            for f in release["files"]
            if fits(f["filename"], python["tags"]) and allows(f.get("requires-python"), python["version"])
        ]

    def released(self, requirements):
        """Returns when the last of the pinned versions was first uploaded, or None where the index does not tell."""
        times = []
        for name, version in requirements:
            release = (
                next((r for v, r in self.releases(name).items() if version_key(v) == version_key(version)), None)
                if version
                else None
            )
            told = [t for t in (uploaded(f) for f in (release or {"files": []})["files"]) if t]
            times += [min(told)] if told else []
        return max(times) if times else None

    @contextlib.contextmanager
    def serve(self, until, pinned=()):
        """Serves the index as it was at `until` (None: as it is); what is `pinned` is always there.
        Yields the address."""
        index, pinned = self, {(name, version_key(version)) for name, version in pinned if version}

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                parts = self.path.strip("/").split("/")
                try:
                    if parts[0] == "stand-in":
                        body, kind = stand_in(parts[1]), "application/octet-stream"
                    else:
                        body, kind = index._filtered(normal(parts[-1]), until, pinned), "text/html"
                except Unreachable as e:
                    self.send_error(502, str(e))
                    return
                if body is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words):
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_address[1]}/simple"
            finally:
                server.shutdown()
                thread.join()

    def _filtered(self, name, until, pinned):
        files = self.files(name)
        if not files:
            return None
        if STAND_INS.match(name) and sys.platform == "linux":
            self.stood_in.append(name)
            versions = sorted({v for v in (version_of(f["filename"]) for f in files) if v})
            names = [f"{name.replace('-', '_')}-{v}-py3-none-any.whl" for v in versions]
            return "".join(f'<a href="/stand-in/{n}">{n}</a>\n' for n in names).encode()
        kept = []
        for file in files:
            time, version = uploaded(file), version_of(file["filename"])
            if until and time and time > until and (name, version_key(version or "")) not in pinned:
                continue
            said = {"href": file["url"] + "".join(f"#{k}={v}" for k, v in list(file.get("hashes", {}).items())[:1])}
            if file.get("requires-python"):
                said["data-requires-python"] = file["requires-python"]
            if file.get("yanked"):
                said["data-yanked"] = file["yanked"] if isinstance(file["yanked"], str) else ""
            words = " ".join(f'{k}="{html.escape(v)}"' for k, v in said.items())
            kept.append(f"<a {words}>{html.escape(file['filename'])}</a>\n")
        return "".join(kept).encode()


def uploaded(file):
    """Returns when a file was uploaded, or None where the index does not tell."""
    try:
        return datetime.datetime.strptime(file["upload-time"][:19], "%Y-%m-%dT%H:%M:%S")
    except (KeyError, TypeError, ValueError):
        return None


def stand_in(filename):
    """Returns a wheel of this name that has nothing in it."""
    name, version = filename.split("-")[:2]
    folder = f"{name}-{version}.dist-info"
    files = {
        f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
        "Summary: empty stand-in made by twinrun\n",
        f"{folder}/WHEEL": "Wheel-Version: 1.0\nGenerator: twinrun\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_digest(text)},{len(text.encode())}\n" for path, text in files.items())
    files[f"{folder}/RECORD"] = record + f"{folder}/RECORD,,\n"
    kept = io.BytesIO()
    with zipfile.ZipFile(kept, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return kept.getvalue()


def _digest(text):
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
