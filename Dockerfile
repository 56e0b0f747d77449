# docker build -t fedtrees . && docker run --rm -v "$PWD:/data" fedtrees bench --csv table.csv --target y
FROM python:3.11-slim
COPY . /source
RUN pip install --no-cache-dir -c /source/constraints.txt /source && rm -r /source
RUN useradd --create-home fedtrees && mkdir /data && chown fedtrees /data
USER fedtrees
WORKDIR /data
ENTRYPOINT ["fedtrees"]
