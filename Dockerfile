# Everything in one image: `up` by default, or one actor by its command (compose.yaml).
# The package index's torch brings CUDA's libraries and runs without a GPU, too. For a smaller image without them:
#   docker build --build-arg TORCH_INDEX=<the index of CPU builds that pytorch.org/get-started names> .
FROM python:3.12-slim-bookworm

ARG TORCH_INDEX=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
WORKDIR /src

# torch first: its layer outlives changes of our code
COPY constraints.txt ./
RUN pip install --constraint constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
COPY pyproject.toml setup.py README.md LICENSE ./
COPY protocols ./protocols
COPY actors ./actors
COPY duoactor ./duoactor
RUN pip install --constraint constraints.txt '.[all]'

# Volumes that are mounted here take over owner and mode: the sockets' directory must be the user's alone.
RUN useradd --create-home --uid 1000 duoactor \
    && install -d -m 700 -o duoactor -g duoactor \
        /run/duoactor /home/duoactor/.cache /home/duoactor/.cache/huggingface
USER duoactor
WORKDIR /home/duoactor
# The default address is then ipc:///run/duoactor/verifier.ipc.
ENV XDG_RUNTIME_DIR=/run

EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=5m --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["duoactor"]
CMD ["up", "--http", "0.0.0.0:8000"]
