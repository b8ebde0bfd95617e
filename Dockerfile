# The service with its worker processes; no torch. Build: docker build -t meshwright .
FROM python:3.11-slim AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --wheel-dir /wheels ".[postgres]"

FROM python:3.11-slim
RUN useradd --create-home --uid 10001 meshwright && install --directory --owner meshwright /data
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels "meshwright[postgres]" && rm -rf /wheels
USER meshwright
WORKDIR /data
ENV MESHWRIGHT_DATA_DIR=/data PYTHONUNBUFFERED=1
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=2)"]
# Beyond loopback every request needs a key: docker exec CONTAINER meshwright keys create NAME
CMD ["meshwright", "serve", "--host", "0.0.0.0", "--port", "8000"]
