# The default audit, without a network:
#   docker build -t docleak . && docker run --rm --network none -v "$PWD/out:/out" --user "$(id -u):$(id -g)" docleak
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends libgl1 libglib2.0-0 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY src src
# PyTorch's CPU build; the registry's own brings several GB of CUDA libraries. Behind a mirror: --build-arg TORCH_INDEX=...
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" torch==2.13.0 \
    && pip install --no-cache-dir --constraint constraints.txt .
ENV HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 HOME=/tmp
WORKDIR /out
ENTRYPOINT ["docleak"]
CMD ["audit", "--out", "/out/docleak-audit"]
