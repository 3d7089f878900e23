# The app and the commands in a container; photos are read from and written to /photos.
#   docker build -t coam .
#   docker run --rm -v "$PWD:/photos" coam match a.jpg b.jpg -o ab.png
#   docker build -t coam:cuda --build-arg KIND=cuda .
#   docker run --rm --gpus all -v "$PWD:/photos" coam:cuda sfm . -o model
# The app listens on loopback only, so it shares the host's network (Linux):
#   docker run --rm --network host coam app --port 7860
ARG KIND=cpu

FROM python:3.12-slim AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim AS torch-cpu
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu "torch>=2.6"

# torch from PyPI brings CUDA with it; Triton, which compiles our kernels, wants a C compiler.
FROM python:3.12-slim AS torch-cuda
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/* \
 && pip install --no-cache-dir "torch>=2.6"

# hadolint ignore=DL3006
FROM torch-${KIND}
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir "$(echo /wheels/coam-*.whl)[app,sfm,eval]" \
 && useradd --create-home --uid 1000 coam \
 && mkdir /photos \
 && chown 1000 /photos
USER 1000
WORKDIR /photos
ENTRYPOINT ["coam"]
CMD ["--help"]
