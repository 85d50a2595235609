# For KubeRay, which wants Ray's own image:  docker build -f examples/kubernetes/ray.Dockerfile -t duoactor-ray .
FROM rayproject/ray:2.60.0-py312
COPY --chown=ray . /home/ray/duoactor
RUN pip install --no-cache-dir '/home/ray/duoactor[ray,all]'
