# plimsoll in a container: for CPUs, or for NVIDIA cards with a driver of 580 or newer.
#
#     docker build -t plimsoll .
#     docker run --rm -v "$PWD":/work plimsoll plan code --memory 512MiB
#
#     docker build --build-arg EXTRA=cuda13 -t plimsoll-cuda .
#     docker run --rm --gpus all -v "$PWD":/work plimsoll-cuda doctor
FROM python:3.12-slim AS build
WORKDIR /source
RUN pip install --no-cache-dir hatchling
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src src
RUN python -m hatchling build --target wheel

FROM python:3.12-slim
ARG EXTRA=""
COPY --from=build /source/dist/*.whl /tmp/
RUN wheel=$(echo /tmp/*.whl) \
    && pip install --no-cache-dir "$wheel${EXTRA:+[$EXTRA]}" \
    && rm "$wheel"
ENV PLIMSOLL_CACHE=/work/.plimsoll
WORKDIR /work
ENTRYPOINT ["plimsoll"]
CMD ["doctor"]
