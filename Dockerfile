# The service, its workers and its commands; no torch. Build: docker build --tag meshwright .
# Images are named by digest and packages by hash, so that the same checkout gives the same programs on any day; docs/tasks/containers.md says how
# both are renewed.
FROM python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d AS build
WORKDIR /src
COPY docker/build.lock docker/requirements.lock docker/
# Before the sources, so that a change of them leaves these layers as they are.
RUN pip install --no-cache-dir --require-hashes --only-binary :all: --requirement docker/build.lock \
    && python -m venv /srv/meshwright \
    && /srv/meshwright/bin/pip install --no-cache-dir --require-hashes --only-binary :all: --requirement docker/requirements.lock
COPY . .
RUN pip wheel --no-cache-dir --no-index --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /srv/meshwright/bin/pip install --no-cache-dir --no-index --no-deps /wheels/*.whl \
    && /srv/meshwright/bin/pip check

FROM python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d
RUN useradd --create-home --uid 10001 meshwright && install --directory --owner meshwright --mode 0700 /data
COPY --from=build /srv/meshwright /srv/meshwright
# By number, so that Kubernetes can see that it is not root.
USER 10001
WORKDIR /data
ENV PATH=/srv/meshwright/bin:$PATH MESHWRIGHT_DATA_DIR=/data PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=2)"]
# Beyond loopback every request needs a key: docker exec CONTAINER meshwright keys create NAME
CMD ["meshwright", "serve", "--host", "0.0.0.0", "--port", "8000"]
