ARG CUDA=12.2.2
FROM nvidia/cuda:${CUDA}-runtime-ubuntu22.04
RUN apt-get update && apt-get install -y python3-pip
RUN pip3 install --index-url https://download.pytorch.org/whl/cu118 torch
COPY train.py /app/
ENTRYPOINT ["python3", "/app/train.py"]
