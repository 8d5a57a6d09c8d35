#!/bin/sh
# Writes requirements/dev.lock and requirements/base.lock from pyproject.toml and requirements/build.in.
#
# The locks carry neither addresses nor hashes: which index serves the packages is the reader's business.
# pyodbc (the mssql extra) is left out because it needs system libraries. base.lock is compiled under
# dev.lock as a constraint, so the demo runs on the versions the tests ran on.
#
# usage: tools/lock.sh PATH_TO_UV
set -eu

uv=${1:?usage: tools/lock.sh PATH_TO_UV}
cd "$(dirname "$0")/.."

compile() {
    target=$1
    shift
    "$uv" pip compile --quiet --upgrade --universal --python-version 3.11 \
        --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
        pyproject.toml requirements/build.in "$@" --output-file "$target.new" >/dev/null
    {
        printf '# Exact versions for Python 3.11, 3.12 and 3.13. Written by "make lock"; do not edit.\n'
        cat "$target.new"
    } >"$target"
    rm "$target.new"
    if grep -n '://\|^-\| @ ' "$target"; then
        echo "lock: $target names an address or an option, see the lines above" >&2
        exit 1
    fi
}

compile requirements/dev.lock --group dev \
    --extra postgres --extra mysql --extra azure --extra cosmos --extra s3 --extra otel
compile requirements/base.lock --constraint requirements/dev.lock
