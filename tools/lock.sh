#!/bin/sh
# Writes requirements/*.lock from pyproject.toml and requirements/*.in.
#
# The locks carry the hash of every file and no address: which index serves a file is the reader's business, what is in
# it is not.
# pyodbc (the mssql extra) is left out because it needs system libraries. base.lock and functions313.lock are
# compiled under dev.lock as a constraint, so the demo and the Functions worker run on the versions the tests ran on.
#
# usage: tools/lock.sh PATH_TO_UV
set -eu

uv=${1:?usage: tools/lock.sh PATH_TO_UV}
cd "$(dirname "$0")/.."

# compile TARGET OLDEST_PYTHON PYTHONS_IN_WORDS ARGUMENT...
compile() {
    target=$1
    python_version=$2
    pythons=$3
    shift 3
    "$uv" pip compile --quiet --upgrade --universal --python-version "$python_version" \
        --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
        "$@" --output-file "$target.new" >/dev/null
    {
        printf '# Exact versions for Python %s. Written by "make lock"; do not edit.\n' "$pythons"
        cat "$target.new"
    } >"$target"
    rm "$target.new"
    if grep -n '://\|^-\| @ ' "$target"; then
        echo "lock: $target names an address or an option, see the lines above" >&2
        exit 1
    fi
}

compile requirements/dev.lock 3.11 "3.11, 3.12 and 3.13" pyproject.toml requirements/build.in --group dev \
    --extra postgres --extra mysql --extra azure --extra cosmos --extra s3 --extra otel --extra grpc --extra server
compile requirements/base.lock 3.11 "3.11, 3.12 and 3.13" pyproject.toml requirements/build.in \
    --constraint requirements/dev.lock
compile requirements/functions313.lock 3.13 "3.13 and newer" pyproject.toml requirements/functions313.in \
    --constraint requirements/dev.lock --extra postgres --extra mysql --extra azure --extra server
compile requirements/uv.lock 3.11 "3.11 and newer" requirements/uv.in
compile requirements/node.lock 3.11 "3.11 and newer" requirements/node.in
