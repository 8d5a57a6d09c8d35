#!/bin/sh
# Generates the Python code of the remote workers' protocol from its .proto file.
#
# The generator's version decides the oldest protobuf the result runs with, so it is pinned in
# pyproject.toml, and the lower bounds of the extra `grpc` follow it.
#
# usage: tools/generate_grpc.sh [PATH_TO_PYTHON] [TARGET_DIRECTORY]
set -eu

cd "$(dirname "$0")/.."
python=${1:-$PWD/.venv/bin/python}
target=${2:-$PWD/src}

cd src # the file's path below it becomes the package of the generated imports
"$python" -m grpc_tools.protoc --proto_path=. --python_out="$target" --pyi_out="$target" \
    holdfast/jobs/grpc/holdfast_jobs.proto
