# What measures GPUs, with PyTorch and CUDA: `meshwright profile run`, and `meshwright agent` for a service.
# Build: docker build --file docker/profiler.Dockerfile --tag meshwright-profiler .
# Run:   docker run --rm --gpus all --ipc host --volume "$PWD:/out" meshwright-profiler meshwright profile run --out /out/node.json
FROM pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime@sha256:417bd75df6365104c283ea4c1651fb3530d9eb5a4c2fafa51943cff2a94e6385 AS build
WORKDIR /src
COPY docker/build.lock docker/profiler.lock docker/
# The environment sees the image's own torch, which belongs to its CUDA; everything else comes from the lock file.
RUN python -m venv /srv/build \
    && /srv/build/bin/pip install --no-cache-dir --require-hashes --only-binary :all: --requirement docker/build.lock \
    && python -m venv --system-site-packages /srv/meshwright \
    && /srv/meshwright/bin/pip install --no-cache-dir --require-hashes --only-binary :all: --requirement docker/profiler.lock
COPY . .
RUN /srv/build/bin/pip wheel --no-cache-dir --no-index --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /srv/meshwright/bin/pip install --no-cache-dir --no-index --no-deps /wheels/*.whl

FROM pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime@sha256:417bd75df6365104c283ea4c1651fb3530d9eb5a4c2fafa51943cff2a94e6385
# Ubuntu's image has a user of its own with the first free number.
RUN useradd --create-home --uid 10001 meshwright
COPY --from=build /srv/meshwright /srv/meshwright
USER 10001
WORKDIR /home/meshwright
ENV PATH=/srv/meshwright/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
CMD ["meshwright", "profile", "run", "--help"]
