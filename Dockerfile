# The wheel of `./dev wheel` in a small image, for systems with an older glibc: docs/quickstart.md.
FROM python:3.12-slim-bookworm
COPY dist/twinrun-*.whl /tmp/
RUN pip install --no-cache-dir --no-index /tmp/twinrun-*.whl && rm /tmp/twinrun-*.whl
WORKDIR /work
ENTRYPOINT ["twinrun"]
